import { $, address, api, el, enableCopy, format, prefix, questionOfAddress, showError, writeCommand } from "./page.js";

const asked = questionOfAddress();
let said;

function ranges() {
  const margin = said.margin;
  const large = Math.max(10 * margin, 0.1);
  const lower = { better: [-large, -margin], same: [-margin, margin], worse: [margin, large] };
  return said.lower_is_better ? lower : { ...lower, better: lower.worse, worse: lower.better };
}

function command() {
  if (!said) return;
  const range = $("low").value !== "" && $("high").value !== "" ? ` --predict=${Number($("low").value)},${Number($("high").value)}` : "";
  writeCommand("command", said.command + range);
}

/** The range of the sign that was chosen; a range that was typed chooses its sign. */
function choose(sign) {
  [$("low").value, $("high").value] = ranges()[sign].map((each) => Number(each.toPrecision(3)));
  $("start").disabled = false;
  command();
}

enableCopy();
$("back").href = `${prefix}/ask${location.search}`;
try {
  if (!asked) throw new Error("There is no question yet: ask one first.");
  said = await api("question", asked);
  const [base, arm] = said.arms.map((each) => each.name);
  const margin = format(said.margin);
  $("asked").textContent = said.question;
  $("say-better").textContent = `${arm} is better.`;
  $("say-same").textContent = `No difference that matters: within ±${margin}.`;
  $("say-worse").textContent = `${arm} is worse.`;
  $("unit").textContent = `The difference in ${said.metric}, ${arm} minus ${base}${said.unit ? `, in ${said.unit}` : ""}: below 0, ${arm} ${said.lower_is_better ? "is better" : "is worse"}.`;
  command();
  const chosen = document.querySelector("[name=sign]:checked");
  if (chosen) choose(chosen.value);  // before the question was here
} catch (error) {
  showError(error);
}
for (const radio of document.getElementsByName("sign")) radio.addEventListener("change", () => { if (said) choose(radio.value); });
for (const id of ["low", "high"]) {
  $(id).addEventListener("input", command);
}
$("prediction").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("start").disabled = true;
  try {
    const prediction = { low: Number($("low").value), high: Number($("high").value) };
    const started = await api("comparisons", { ...asked, name: said.name, prediction });
    location.href = address("watch", started.name);
  } catch (error) {
    showError(error);
    if (error.status === 409) {
      $("error").append(" ", el("a", { href: address("watch", error.values.name) }, "Open it"), ", or give this one another name on the page before.");
    }
    $("start").disabled = false;
  }
});
