import { $, announce, api, el, enableCopy, format, run, showError } from "./page.js";
import { follow, numberOf, setRunning, showChanged, showCommand } from "./events.js";

enableCopy();
const ANNOUNCED = 4000, STRONGEST = 5; // milliseconds between announcements; tokens that are named
let stop;
let tokens = []; // {span, text, weights}: those of the prompt have no weights
let prompted = 0; // tokens of the prompt
let waiting = false; // for the next frame

function values() {
  const asked = { kind: "generate", prompt: $("prompt").value };
  for (const key of ["max_new_tokens", "temperature", "top_k", "top_p", "seed"]) asked[key] = numberOf(key);
  return asked;
}

const changed = () => showChanged(values());

/** A token's text; a token that ends within a character has none. */
function add(text, weights) {
  const span = el("span", {}, text);
  $("text").append(span);
  tokens.push({ span, text, weights });
}

const visible = (text) => text.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "…";

/** The weights of the chosen token, over the tokens before it. */
function show() {
  waiting = false;
  const index = prompted + Number($("place").value);
  const weights = tokens[index]?.weights;
  for (const [at, { span }] of tokens.entries()) span.toggleAttribute("data-now", at === index);
  if (!weights) return;
  const shares = new Map(); // a character of several tokens has the weight of all of them
  let carried = 0;
  for (const [at, weight] of weights.entries()) {
    carried += weight;
    if (tokens[at].text || at === weights.length - 1) { shares.set(at, carried); carried = 0; }
  }
  const most = Math.max(...shares.values()) || 1;
  for (const [at, { span }] of tokens.entries()) span.style.setProperty("--weight", (shares.get(at) ?? 0) / most);
  const strongest = [...shares].sort((a, b) => b[1] - a[1]).slice(0, STRONGEST);
  $("strongest").textContent = `“${visible(tokens[index].text)}” attends to ${strongest.map(([at, weight]) => `“${visible(tokens[at].text)}” ${format(weight, 2)}`).join(", ")}`;
}

function showSoon() {
  $("place").max = Math.max(0, tokens.length - prompted - 1);
  $("place").value = $("place").max;
  if (!waiting) requestAnimationFrame(show);
  waiting = true;
}

let unread = "", read = 0;
/** Reads new text to screen readers, some seconds of it at a time. */
function announceText(text) {
  unread += text;
  if (Date.now() - read >= ANNOUNCED) announceRest("");
}
function announceRest(text) {
  announce(`${unread} ${text}`.trim());
  [unread, read] = ["", Date.now()];
}

function take(event) {
  if (event.kind === "prompt") {
    for (const text of event.tokens) add(text);
    prompted = tokens.length;
    $("status").textContent = "Writing\u00a0…";
    return;
  }
  if (event.kind === "end") return;
  add(event.text, event.attention);
  announceText(event.text);
  if (event.attention) showSoon();
}

function clear() {
  $("text").replaceChildren();
  [tokens, prompted, unread, read] = [[], 0, "", Date.now()];
  $("strongest").textContent = "";
}

function running(now) {
  setRunning(now);
  $("text").setAttribute("aria-busy", String(now));
}

async function start(event) {
  event.preventDefault();
  const asked = values();
  if ($("watch").checked) asked.attention = { layer: numberOf("layer"), head: numberOf("head") };
  showError();
  clear();
  $("attention").hidden = !asked.attention;
  stop = new AbortController();
  running(true);
  $("status").textContent = "Loading the model\u00a0…";
  announce("Loading the model");
  let said = "Finished";
  try {
    await showCommand(values(), true);
    await follow(asked, take, stop.signal);
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
    said = error.name === "AbortError" ? "Stopped" : "";
  }
  running(false);
  $("status").textContent = said && `${said}: ${tokens.length - prompted} tokens`;
  announceRest($("status").textContent);
}

$("question").addEventListener("input", changed);
$("question").addEventListener("submit", start);
try {
  const { attention } = await api(`runs/${encodeURIComponent(run)}`);
  $("watching").hidden = !attention;
  if (attention) {
    $("layer").max = attention.layers - 1;
    $("head").max = attention.heads - 1;
  }
  $("start").disabled = false;
  await changed();
} catch (error) {
  showError(error);
}
$("stop").addEventListener("click", () => stop.abort());
$("place").addEventListener("input", show);
