// Zoom, and what is below the pointer. Without it the page is complete, only still.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const WIDTH = 10000, LEAST = 1e-4;
  const group = document.getElementById("group");
  const readout = document.getElementById("readout");
  const plots = [...document.querySelectorAll(".time .plot")];
  if (!(data.age > 0) || !plots.length) return;
  const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600,
    900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600];
  let low = 0, high = 1;  // what is shown, as parts of the age
  let at = null;  // where the cursor is, likewise

  const two = (number) => String(number).padStart(2, "0");
  function clock(seconds, step) {
    if (seconds < 60) return seconds === 0 ? "0" : (step < 1 ? seconds.toFixed(step < 0.1 ? 2 : 1) : Math.round(seconds)) + " s";
    if (step < 60) {
      const whole = Math.floor(seconds / 60), rest = seconds - whole * 60;
      const tail = step < 1 ? rest.toFixed(1) : two(Math.round(rest));
      return whole < 60 ? whole + " min " + tail : Math.floor(whole / 60) + " h " + two(whole % 60) + " min " + tail;
    }
    const minutes = Math.round(seconds / 60);
    if (minutes < 60) return minutes + " min";
    if (minutes < 1440) return Math.floor(minutes / 60) + " h" + (minutes % 60 ? " " + two(minutes % 60) : "");
    const hours = Math.round(seconds / 3600);
    return Math.floor(hours / 24) + " d" + (hours % 24 ? " " + two(hours % 24) + " h" : "");
  }

  for (const plot of plots) {
    for (const name of ["cursor", "range"]) {
      const line = document.createElement("div");
      line.className = name;
      line.hidden = true;
      plot.append(line);
    }
  }

  function place(element, part) {
    const x = (part - low) / (high - low);
    element.hidden = x < -1e-9 || x > 1 + 1e-9;
    element.style.left = (x * 100).toFixed(3) + "%";
  }

  function marks() {  // of some that lie on each other only the first is shown
    let right = -Infinity;
    for (const mark of document.querySelectorAll(".mark")) {
      place(mark, Number(mark.dataset.x));
      if (mark.hidden) continue;
      const box = mark.getBoundingClientRect();
      mark.hidden = box.left < right - 3;
      if (!mark.hidden) right = box.right;
    }
  }

  function ticks(holder) {
    const span = (high - low) * data.age, begin = low * data.age;
    const most = holder.clientWidth < 420 ? 4 : 6;
    const step = STEPS.find((each) => span / each <= most) || STEPS[STEPS.length - 1];
    holder.replaceChildren();
    holder.classList.add("live");
    for (let value = Math.ceil(begin / step - 1e-9) * step; value <= begin + span * (1 + 1e-9); value += step) {
      const tick = document.createElement("span");
      const x = (value - begin) / span;
      tick.textContent = clock(value, step);
      tick.className = x < 0.02 ? "first" : x > 0.97 ? "last" : "";
      tick.style.left = (x * 100).toFixed(3) + "%";
      holder.append(tick);
    }
  }

  // Charts whose y axis follows what is seen: all ends of their lines, as drawn (x 0..10000, y 0..1000 down).
  const fitted = [...document.querySelectorAll(".time[data-low]")].map((figure) => ({
    layer: figure.querySelector(".layer"), gutter: figure.querySelector(".gutter"),
    whole: figure.querySelector(".gutter").innerHTML, grid: [...figure.querySelectorAll("path.grid")],
    low: Number(figure.dataset.low), high: Number(figure.dataset.high), log: figure.hasAttribute("data-log"),
    ends: [...figure.querySelectorAll("path.line")].flatMap((path) =>
      path.getAttribute("d").slice(1).split("L").map((end) => end.split(" ").map(Number))),
  }));

  function valueAt(chart, y) {
    const part = 1 - y / 1000;
    return chart.log ? chart.low * Math.pow(chart.high / chart.low, part) : chart.low + (chart.high - chart.low) * part;
  }

  function yAt(chart, value) {
    const part = chart.log ? Math.log(value / chart.low) / Math.log(chart.high / chart.low)
      : (value - chart.low) / (chart.high - chart.low);
    return (1 - part) * 1000;
  }

  function niceStep(raw) {
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    return [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * (1 - 1e-9)) * power;
  }

  function seen(chart) {  // [top, height] of what there is to see between low and high
    let top = Infinity, bottom = -Infinity;
    for (const [x, y] of chart.ends) {
      if (x < low * WIDTH - 1 || x > high * WIDTH + 1) continue;
      top = Math.min(top, y);
      bottom = Math.max(bottom, y);
    }
    if (high - low >= 1 || top === Infinity) return [0, 1000];
    const room = Math.max(0.08 * (bottom - top), 1);
    return [Math.max(0, top - room), Math.min(1000, bottom + room) - Math.max(0, top - room)];
  }

  function fit(chart) {
    const [top, height] = seen(chart);
    chart.grid.forEach((path) => { path.style.display = height < 1000 ? "none" : ""; });
    if (height >= 1000) chart.gutter.innerHTML = chart.whole; else mark(chart, top, height);
    return [top, height];
  }

  function mark(chart, top, height) {
    chart.gutter.replaceChildren();
    const from = valueAt(chart, top + height), to = valueAt(chart, top), step = niceStep((to - from) / 3);
    const digits = step < 1 ? Math.min(6, Math.ceil(-Math.log10(step) + 0.3)) : 0;
    for (let value = Math.ceil(from / step) * step; value <= to; value += step) {
      const label = document.createElement("span");
      label.textContent = value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      label.style.bottom = (100 - (yAt(chart, value) - top) / height * 100).toFixed(2) + "%";
      chart.gutter.append(label);
    }
  }

  function show(newLow, newHigh) {
    const width = Math.min(1, Math.max(LEAST, newHigh - newLow));
    low = Math.min(1 - width, Math.max(0, newLow));
    high = low + width;
    const across = `${(low * WIDTH).toFixed(4)} Y ${(width * WIDTH).toFixed(4)} H`;
    const frame = (top, height) => across.replace("Y", top.toFixed(3)).replace("H", height.toFixed(3));
    document.querySelectorAll(".time .layer").forEach((layer) => layer.setAttribute("viewBox", frame(0, 1000)));
    fitted.forEach((chart) => chart.layer.setAttribute("viewBox", frame(...fit(chart))));
    document.querySelectorAll(".time .ticks").forEach(ticks);
    marks();
    document.getElementById("zoom-out").disabled = document.getElementById("zoom-all").disabled = width >= 1;
    point(at);
  }

  function zoom(factor) {
    const middle = at !== null && at >= low && at <= high ? at : (low + high) / 2;
    show(middle - (middle - low) * factor, middle + (high - middle) * factor);
  }

  function last(rows, seconds) {
    let from = 0, to = rows.length;
    while (from < to) {
      const half = (from + to) >> 1;
      if (rows[half][0] <= seconds + 1e-9) from = half + 1; else to = half;
    }
    return from ? rows[from - 1] : null;
  }

  function told(part) {
    const seconds = part * data.age, words = [];
    const segment = last(data.segments, seconds), step = last(data.points, seconds);
    const share = last(data.goodput, seconds), size = last(data.sizes, seconds);
    words.push(["at ", clock(seconds, data.age > 3600 ? 1 : 0.1)]);
    if (segment) words.push(["", data.labels[segment[2]]]);
    if (step) {
      words.push(["step ", step[1].toLocaleString("en")]);
      if (step[1] < step[2]) words.push(["furthest ", step[2].toLocaleString("en")]);
      if (step[3] !== null) words.push(["loss ", String(Number(step[3].toPrecision(4)))]);
    }
    if (share) words.push(["goodput so far ", (share[1] * 100).toFixed(1) + " %"]);
    if (size) words.push(["workers ", String(size[1])]);
    return words;
  }

  function point(part) {
    at = part;
    for (const line of document.querySelectorAll(".cursor")) {
      if (part === null) line.hidden = true; else place(line, part);
    }
    readout.replaceChildren();
    if (part === null) return;
    told(part).forEach(([label, value], index) => {
      const strong = document.createElement("b");
      strong.textContent = value;
      readout.append((index ? " · " : "") + label, strong);
    });
  }

  const inside = (plot, event) => {
    const box = plot.getBoundingClientRect();
    return low + (high - low) * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };

  let begun = null;
  function select(part) {
    for (const range of document.querySelectorAll(".range")) {
      range.hidden = begun === null || part === null;
      if (range.hidden) continue;
      const from = (Math.min(begun, part) - low) / (high - low), to = (Math.max(begun, part) - low) / (high - low);
      range.style.left = from * 100 + "%";
      range.style.width = (to - from) * 100 + "%";
    }
  }

  for (const plot of plots) {
    plot.addEventListener("pointermove", (event) => {
      const part = inside(plot, event);
      point(part);
      if (begun !== null) select(part);
    });
    plot.addEventListener("pointerleave", () => { if (begun === null) point(null); });
    plot.addEventListener("pointerdown", (event) => {
      if (event.button || event.target.closest("a")) return;
      begun = inside(plot, event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointerup", (event) => {
      if (begun === null) return;
      const end = inside(plot, event), from = begun;
      begun = null;
      select(null);
      point(end);
      if (Math.abs(end - from) > (high - low) * 0.01) show(Math.min(from, end), Math.max(from, end));
    });
    plot.addEventListener("pointercancel", () => { begun = null; select(null); });
    plot.addEventListener("dblclick", () => show(0, 1));
  }

  group.addEventListener("keydown", (event) => {
    if (event.target !== group || event.ctrlKey || event.metaKey || event.altKey) return;
    const width = high - low, here = at === null ? low + width / 2 : at;
    const keys = {
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => show(0, 1),
      ArrowLeft: () => move(here - width / 100), ArrowRight: () => move(here + width / 100),
      Home: () => move(0), End: () => move(1),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  function move(part) {
    at = Math.min(1, Math.max(0, part));
    if (at < low || at > high) show(at - (high - low) / 2, at + (high - low) / 2); else point(at);
  }

  document.getElementById("zoom-in").addEventListener("click", () => zoom(0.5));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(2));
  document.getElementById("zoom-all").addEventListener("click", () => show(0, 1));
  window.addEventListener("resize", () => show(low, high));
  for (const element of [document.querySelector(".tools"), document.getElementById("help")]) element.hidden = false;
  show(0, 1);
})();
