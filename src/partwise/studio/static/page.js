// What all screens share. Text from models and files reaches the page as text only, never as markup.
export const prefix = document.body.dataset.prefix;
export const comparison = document.body.dataset.comparison;
export const run = document.body.dataset.run;
export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined && value !== null) made.setAttribute(key, value);
  made.append(...children.filter((each) => each !== null && each !== undefined).map((each) => (each instanceof Node ? each : String(each))));
  return made;
}

export const row = (...cells) => el("tr", {}, ...cells.map((cell) => (cell instanceof Node && cell.tagName === "TD" ? cell : el("td", {}, cell))));
export const number = (value) => el("td", { class: "number" }, value);
export const address = (...words) => prefix + words.map((word) => `/${encodeURIComponent(word)}`).join("");

/** The JSON of an address; with a body, a change. Throws an Error with the reason that the studio gives. */
export async function api(path, body, signal) {
  const options = body === undefined ? { signal } : { signal, method: "POST", headers: { "content-type": "application/json", "x-partwise": "1" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(`${prefix}/api/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The studio does not answer. Is it still running in its terminal?");
  }
  const values = await answer.json().catch(() => ({ error: `the studio answered ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(values.error), { values, status: answer.status });
  return values;
}

export function showError(error) {
  const place = $("error");
  place.textContent = error ? error.message : "";
  place.hidden = !error;
}

/** Says something to screen readers. */
export function announce(text) { $("live").textContent = text; }

/** Shows a command whose words break between, not at their hyphens. */
export function writeCommand(id, command) {
  $(id).replaceChildren(...(command ?? "").split(/( )/).map((word) => (word === " " ? word : el("span", { class: "word" }, word))));
}

export function enableCopy() {
  for (const block of document.querySelectorAll(".copy")) {
    const [text, button] = [block.querySelector("pre"), block.querySelector("button")];
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        announce("Copied");
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(text);
        announce("Selected: copy it with your keyboard");
      }
    });
  }
}

export const format = (value, digits = 4) => (value === null || value === undefined ? "" : Number(value).toLocaleString("en", { maximumSignificantDigits: digits, useGrouping: true }));
export const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + format(Math.abs(value));

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function questionOfAddress() {
  try { return JSON.parse(new URLSearchParams(location.search).get("q")); } catch { return null; }
}

const root = document.documentElement;
function setTheme(theme) {
  root.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  dispatchEvent(new Event("themed"));
}
function setProjector(on) {
  root.toggleAttribute("data-projector", on);
  $("projector").setAttribute("aria-pressed", String(on));
}
setTheme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
setProjector(localStorage.getItem("projector") === "on");
$("theme").addEventListener("click", () => {
  setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  localStorage.setItem("theme", root.dataset.theme);
});
$("projector").addEventListener("click", () => {
  setProjector(!root.hasAttribute("data-projector"));
  localStorage.setItem("projector", root.hasAttribute("data-projector") ? "on" : "off");
});
