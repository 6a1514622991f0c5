import { $, address, api, el, format, number, row, showError } from "./page.js";

const STATES = { running: "its runs", stopped: "its runs, stopped", failed: "its runs, failed", finished: "the answer", new: "" };

try {
  const lessons = await api("lessons");
  $("lessons").tBodies[0].replaceChildren(...lessons.map((each) => row(
    number(each.number),
    el("td", {}, el("a", { href: address("lesson", each.number) }, each.title), el("br"), el("span", { class: "quiet" }, each.question)),
    number(format(each.minutes)),
    each.prediction ? `${format(each.prediction.low)} to ${format(each.prediction.high)}` : "",
    each.at === "done" ? "done" : STATES[each.state] || each.at,
  )));
} catch (error) {
  showError(error);
}
