"use strict";
// A cursor over all plots at once, by pointer or arrow keys, that puts the values of an interval
// into the legends. The page is complete without it.
{
  const { ends, charts } = JSON.parse(document.getElementById("data").textContent);
  const total = ends.at(-1);

  const scaled = (value, step, units) => {
    let unit = 0;
    while (value >= step && unit + 1 < units.length) {
      value /= step;
      unit += 1;
    }
    return `${value.toFixed(value < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`.trim();
  };
  const bytes = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  const texts = {
    "bytes": bytes,
    "bytes/s": (value) => `${bytes(value)}/s`,
    "/s": (value) => `${scaled(value, 1000, ["", "k", "M", "G"])}/s`,
    "%": (value) => `${value.toFixed(0)} %`,
  };
  const seconds = (value) => `${value.toFixed(total < 100 ? 2 : 0)} s`;

  const plots = [];
  for (const { id, scale, values } of charts) {
    const figure = document.getElementById(id);
    const plot = figure.querySelector(".plot");
    if (!plot) continue;
    const outputs = [...figure.querySelectorAll("output")];
    const peaks = outputs.map((output) => output.textContent);
    const names = [...figure.querySelectorAll(".legend li")].map((item) => item.childNodes[1].data);
    const cursor = document.createElement("div");
    cursor.className = "cursor";
    cursor.hidden = true;
    cursor.append(document.createElement("span"));
    plot.append(cursor);
    plots.push({ plot, cursor, outputs, peaks, names, values, text: texts[scale] });
  }

  let at = null;
  const begin = (index) => (index > 0 ? ends[index - 1] : 0);
  const show = (index) => {
    at = index;
    for (const { plot, cursor, outputs, peaks, names, values, text } of plots) {
      cursor.hidden = at === null;
      const found = values.map((line) => (at === null ? "" : text(line[at])));
      outputs.forEach((output, line) => {
        output.textContent = at === null ? peaks[line] : found[line];
      });
      if (at === null) continue;
      cursor.style.left = `${(100 * (begin(at) + ends[at])) / 2 / total}%`;
      cursor.firstChild.textContent = seconds(ends[at]);
      plot.setAttribute("aria-valuenow", at);
      const lines = found.map((value, line) => `${names[line].trim()} ${value}`);
      plot.setAttribute("aria-valuetext", `${seconds(ends[at])}: ${lines.join(", ")}`);
    }
  };
  const keys = {
    ArrowLeft: () => Math.max((at ?? ends.length) - 1, 0),
    ArrowRight: () => Math.min((at ?? -1) + 1, ends.length - 1),
    PageDown: () => Math.max((at ?? ends.length) - 10, 0),
    PageUp: () => Math.min((at ?? -1) + 10, ends.length - 1),
    Home: () => 0,
    End: () => ends.length - 1,
    Escape: () => null,
  };
  for (const { plot } of plots) {
    plot.tabIndex = 0;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-valuemin", 0);
    plot.setAttribute("aria-valuemax", ends.length - 1);
    plot.setAttribute("aria-valuenow", 0);
    plot.addEventListener("keydown", (event) => {
      const key = keys[event.key];
      if (!key || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      show(key());
    });
    plot.addEventListener("pointermove", (event) => {
      const { left, width } = plot.getBoundingClientRect();
      const time = ((event.clientX - left) / width) * total;
      const index = ends.findIndex((end) => end >= time);
      show(time < 0 || index < 0 ? null : index);
    });
    plot.addEventListener("pointerleave", () => show(null));
    plot.addEventListener("blur", () => show(null));
  }
  document.querySelector(".hint").hidden = plots.length === 0;
}
