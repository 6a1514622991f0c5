import { $, address, announce, api, el, enableCopy, run, showError } from "./page.js";
import { follow, numberOf, setRunning, showChanged, showCommand } from "./events.js";

enableCopy();
const values = () => ({ kind: "inspect", what: $("what").value, text: $("text").value, seq_len: numberOf("seq_len") });
let stop;

const changed = () => showChanged(values());

async function start(event) {
  event.preventDefault();
  showError();
  stop = new AbortController();
  setRunning(true);
  $("status").textContent = "Inspecting\u00a0…";
  announce("Inspecting");
  let said = "Stopped";
  try {
    const asked = values();
    await showCommand(asked, true);
    await follow(asked, ({ page }) => {
      $("page").src = `${address("pages", run, page)}?${Date.now()}`;
      $("shown").hidden = false;
      said = "The page is below";
    }, stop.signal);
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
    said = error.name === "AbortError" ? "Stopped" : "";
  }
  setRunning(false);
  $("status").textContent = said;
  announce(said);
}

$("question").addEventListener("input", changed);
$("question").addEventListener("submit", start);
try {
  const { inspections } = await api(`runs/${encodeURIComponent(run)}`);
  $("what").replaceChildren(...Object.entries(inspections).map(([name, about]) => el("option", { value: name }, `${name}: ${about}`)));
  $("what").value = "attention";
  $("start").disabled = false;
  await changed();
} catch (error) {
  showError(error);
}
$("stop").addEventListener("click", () => stop.abort());
