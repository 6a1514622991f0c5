// A command of a run as it writes: events of one POST, which ends with its page.
import { $, api, prefix, run, showError, writeCommand } from "./page.js";

/** Calls `each` with every event of a started command, until it has ended or `signal` stops it. */
export async function follow(values, each, signal) {
  const headers = { "content-type": "application/json", "x-partwise": "1" };
  const answer = await fetch(`${prefix}/api/runs/${encodeURIComponent(run)}/start`, { method: "POST", headers, body: JSON.stringify(values), signal });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `the studio answered ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = JSON.parse(part.slice("data: ".length));
      if (event.kind === "failed") throw new Error(event.error);
      ended ||= event.kind === "end";
      each(event);
    }
  }
  if (!ended) throw new Error("The studio does not answer. Is it still running in its terminal?");
}

let asking;
let shown = ""; // the command of what the page shows below
/** Shows the command of these fields, for a terminal; throws an Error with the reason that it cannot run. */
export async function showCommand(values, starts) {
  asking?.abort();
  asking = starts ? undefined : new AbortController();
  const { command } = await api(`runs/${encodeURIComponent(run)}/command`, values, asking?.signal);
  writeCommand("command", command);
  if (starts) shown = command;
  $("stale").hidden = !shown || command === shown;
  $("stale").textContent = `The fields have changed. What is below is of: ${shown}`;
}

/** Shows the command of fields that have changed, or the reason that it cannot run. */
export async function showChanged(values) {
  try {
    await showCommand(values);
    showError();
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  }
}

/** A number of a field, or undefined if it is empty. */
export const numberOf = (id) => ($(id).value === "" ? undefined : Number($(id).value));

/** Whether a command runs: the keyboard's focus goes from the button that starts it to that which stops it, and back. */
export function setRunning(now) {
  const [from, to] = now ? [$("start"), $("stop")] : [$("stop"), $("start")];
  const focused = document.activeElement === from;
  to.disabled = false;
  if (focused) to.focus();
  from.disabled = true;
}
