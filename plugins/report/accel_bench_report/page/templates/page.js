"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const hours = (value) => {
    if (!Number.isFinite(value)) return "-";
    if (value >= 1) return `${value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 })} h`;
    return value * 60 >= 1 ? `${(value * 60).toFixed(1)} min` : `${(value * 3600).toFixed(1)} s`;
  };
  const money = (value) => value >= 100 ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const number = (input) => {
    const text = input.value.replaceAll("_", "").trim();
    // Elsewhere than between groups of three digits a comma may be meant as a decimal point.
    const grouped = /^\d{1,3}(,\d{3})+(\.\d+)?$/.test(text);
    const value = Number((grouped ? text.replaceAll(",", "") : text) || NaN);
    const good = Number.isFinite(value) && value > 0;
    const wrong = !good && text !== "";
    input.classList.toggle("wrong", wrong);
    input.setAttribute("aria-invalid", String(wrong));
    input.parentElement.querySelector(".problem").textContent = !wrong ? ""
      : text.includes(",") ? "not a number: write 2.50, 1e9 or 1,000,000" : "not a number above 0";
    return good ? value : NaN;
  };
  const span = (low, high, form) => Number.isFinite(low) && Number.isFinite(high)
    ? `${form(low)} to ${form(high)}` : "";
  const fill = (cell, values, form) => {
    const [middle, low, high] = values;
    cell.replaceChildren(Number.isFinite(middle) ? form(middle) : "-");
    const text = Number.isFinite(middle) ? span(low, high, form) : "";
    if (!text) return;
    const part = document.createElement("span");
    part.className = "part";
    part.textContent = text;
    cell.append(part);
  };
  const recompute = (job) => {
    const tokens = number(job.querySelector(".tokens"));
    const price = number(job.querySelector(".price"));
    const place = job.closest("section.scenario");
    for (const row of all("tr[data-speed]", place)) {
      // The fastest end of an interval is the least time.
      const speeds = [row.dataset.speed, row.dataset.high, row.dataset.low];
      const taken = speeds.map((speed) => speed ? tokens / Number(speed) / 3600 : NaN);
      fill(row.querySelector(".hours"), taken, hours);
      fill(row.querySelector(".money"), taken.map((one) => one * price), money);
    }
    for (const bar of all("[data-compile]", place)) {
      const { compile, unit, window: own } = bar.dataset;
      const added = 1000 * Number(compile) * Number(unit) / tokens;
      const known = Number.isFinite(added);
      const exact = (value) => value >= 100 ? value.toFixed(0) : value.toPrecision(3);
      const size = Math.abs(added);
      bar.querySelector(".added").textContent = !known ? "-" : added && size < 0.01 ? "<0.01 ms"
        : `${added < 0 ? "-" : "+"}${exact(size)} ms`;
      bar.querySelector(".both").textContent = known ? `${exact(Number(own) + added)} ms` : "-";
    }
  };
  for (const job of all(".job")) {
    job.addEventListener("input", () => recompute(job));
    recompute(job);
  }
  const reveal = () => {
    let target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch { return; }
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
  for (const button of all("button.copy")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent); }
      catch { return; }
      button.textContent = "copied";
    });
  }
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
})();
