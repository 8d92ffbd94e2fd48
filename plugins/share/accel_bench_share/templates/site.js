"use strict";
const rows = [...document.querySelectorAll("tbody tr")];
const fields = [...document.querySelectorAll("[data-filter]")];
const shown = document.getElementById("shown");
function fits(row, field) {
  const value = field.value;
  const name = field.dataset.filter;
  if (!value) return true;
  if (name === "from") return row.dataset.date >= value;
  if (name === "to") return row.dataset.date <= value;
  if (name === "version") return row.dataset.version.split("\n").includes(value);
  return row.dataset[name] === value;
}
function filter() {
  let count = 0;
  for (const row of rows) {
    row.hidden = !fields.every((field) => fits(row, field));
    count += row.hidden ? 0 : 1;
  }
  shown.textContent = `${count} of ${rows.length} rows`;
}
function remember() {
  const chosen = fields.filter((field) => field.value);
  const words = new URLSearchParams(chosen.map((field) => [field.dataset.filter, field.value]));
  history.replaceState(null, "", `#${words}`);
}
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  const field = fields.find((one) => one.dataset.filter === name);
  if (field) field.value = value;
}
const form = document.getElementById("filters");
function change() {
  filter();
  remember();
}
form.addEventListener("input", change);
form.addEventListener("reset", () => setTimeout(change));
form.addEventListener("submit", (event) => event.preventDefault());
filter();
