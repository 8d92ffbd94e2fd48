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
  if (name === "plugin") return row.dataset.plugin.split("\n").includes(value);
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
const form = document.getElementById("filters");
form.addEventListener("input", filter);
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", (event) => event.preventDefault());
filter();
