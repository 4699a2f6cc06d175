"use strict";
const tip = document.getElementById("tip");
const status = document.getElementById("status");
const element = (tag, kind, text) => Object.assign(document.createElement(tag), { className: kind, textContent: text ?? "" });

// Light or dark: as the system is set, until the reader chooses.
const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const current = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
const nameTheme = () => { theme.textContent = current() === "dark" ? "☀ Light" : "☾ Dark"; };
theme.hidden = false;
theme.addEventListener("click", () => {
  const other = current() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = other;
  try { localStorage.setItem("everypair-theme", other); } catch {}
  nameTheme();
});
dark.addEventListener("change", nameTheme);
nameTheme();

// Sortable tables: up, down, and back to the order of the report.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = element("button", "", head.textContent);
    button.type = "button";
    head.replaceChildren(button);
    const value = (row) => {
      const cell = row.cells[column];
      return "v" in cell.dataset ? parseFloat(cell.dataset.v) : cell.textContent.trim();
    };
    const compare = (a, b) => {
      if (typeof a === "string") return a.localeCompare(b);
      return Number.isNaN(a) - Number.isNaN(b) || a - b;
    };
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
      const order = next === undefined ? "ascending" : next;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (order) head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const rows = order ? [...original].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        // Missing values stay at the end in both orders.
        return Number.isNaN(x) || Number.isNaN(y) ? compare(x, y) : sign * compare(x, y);
      }) : original;
      body.append(...rows);
      status.textContent = order ? `Sorted by ${button.textContent}, ${order}` : "Original order";
    });
  });
}

// Which comparison is shown.
const comparisons = [...document.querySelectorAll(".comparison")];
const show = (id) => comparisons.forEach((one) => one.classList.toggle("shown", one.id === id));
for (const input of document.querySelectorAll(".picker input")) {
  input.addEventListener("change", () => show(input.value));
  if (input.checked) show(input.value);
}
if (!document.querySelector(".picker input") && comparisons[0]) show(comparisons[0].id);

// Values under the pointer, and with the arrow keys.
const place = (x, y) => {
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(6, Math.min(x + 14, room - width - 6))}px`;
  tip.style.top = `${y - height - 12 > 6 ? y - height - 12 : y + 18}px`;
};
const hide = () => { tip.hidden = true; };
const shown = (value) => (Math.abs(value) >= 0.001 && Math.abs(value) < 1000 ? value.toPrecision(3) : value.toExponential(1));

for (const script of document.querySelectorAll(".plot script")) {
  const plot = script.parentNode;
  const { frame, x: [left, right], y, log, name, step, lines } = JSON.parse(script.textContent);
  const last = Math.max(0, ...lines.map((line) => line.values.length - 1));
  const scale = (value) => (log ? Math.log10(value) : value);
  const [low, high] = y.map(scale);
  // The inside of the axes; the hair line and the points lie in it.
  const area = element("div", "area");
  Object.assign(area.style, { left: `${100 * frame[0]}%`, bottom: `${100 * frame[1]}%`, width: `${100 * frame[2]}%`, height: `${100 * frame[3]}%` });
  plot.append(area);
  const hair = element("div", "hair");
  let at = null;
  const clear = () => { area.replaceChildren(); hide(); };
  const point = (index, aloud) => {
    at = Math.max(0, Math.min(last, index));
    clear();
    const box = area.getBoundingClientRect();
    const share = (at * step - left) / (right - left);
    hair.style.left = `${100 * share}%`;
    area.append(hair);
    const title = `${name} ${Number((at * step).toPrecision(3))}`;
    tip.replaceChildren(element("b", "", title));
    const words = [title];
    for (const line of lines) {
      const value = line.values[at];
      if (value === null || value === undefined) continue;
      const row = element("div", "");
      const label = element("span", "");
      label.append(element("i", ""), line.name);
      row.append(label, element("b", "", shown(value)));
      tip.append(row);
      words.push(`${line.name} ${shown(value)}`);
      const dot = element("div", "point");
      dot.style.left = `${100 * share}%`;
      dot.style.bottom = `${100 * Math.max(0, Math.min(1, (scale(value) - low) / (high - low)))}%`;
      area.append(dot);
      for (const part of [row, dot]) part.style.setProperty("--c", line.colour);
    }
    place(box.left + share * box.width, box.top + 10);
    if (aloud) status.textContent = words.join(", ");
  };
  const under = (event) => {
    const box = area.getBoundingClientRect();
    const x = left + ((event.clientX - box.left) / box.width) * (right - left);
    point(Math.round(x / step));
  };
  plot.addEventListener("pointermove", under);
  plot.addEventListener("pointerdown", under);
  plot.addEventListener("pointerleave", clear);
  plot.addEventListener("blur", clear);
  plot.addEventListener("keydown", (event) => {
    const start = at ?? 0;
    const jump = { ArrowLeft: start - 1, ArrowRight: start + 1, Home: 0, End: last, PageUp: start - 10, PageDown: start + 10 }[event.key];
    if (event.key === "Escape") clear();
    if (jump === undefined) return;
    event.preventDefault();
    point(jump, true);
  });
}

for (const item of document.querySelectorAll("[data-tip]")) {
  const open = (x, y) => {
    tip.replaceChildren(...item.dataset.tip.split("\n").map((line) => element("div", "", line)));
    place(x, y);
  };
  item.addEventListener("pointermove", (event) => open(event.clientX, event.clientY));
  item.addEventListener("pointerleave", hide);
  item.addEventListener("focus", () => { const box = item.getBoundingClientRect(); open(box.left, box.top); });
  item.addEventListener("blur", hide);
}
addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
addEventListener("scroll", hide, { passive: true });
