// Two selects choose which series of a figure are drawn. The picture that stands there without this
// script is replaced by one that is drawn here, in the same size.
for (const figure of document.querySelectorAll("figure.pairs")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const selects = figure.querySelectorAll("select");
  selects.forEach((select, place) => {
    data.series.forEach(([name], number) => select.add(new Option(name, number)));
    select.selectedIndex = data.chosen[place];
    select.addEventListener("change", () => drawPair(figure, data, selects));
  });
  figure.querySelector(".choice").hidden = false;
  drawPair(figure, data, selects);
  addEventListener("resize", () => drawPair(figure, data, selects));
}

function drawPair(figure, data, selects) {
  const W = Math.max(340, figure.querySelector(".box").clientWidth), H = Math.min(420, 0.5 * W + 130);
  const left = 48, right = 14, top = 12, bottom = 46;
  const make = (parent, tag, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  };
  const [one, two] = Array.from(selects, (select) => data.series[select.value]);
  const points = data.names
    .map((name, k) => ({ name, x: data.x[k], a: one[1][k], b: two[1][k] }))
    .filter((p) => p.a !== null && p.b !== null);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${one[0]} and ${two[0]}`);
  figure.querySelector(".box").replaceChildren(svg);

  const most = Math.max(1, ...data.series.flatMap((s) => s[1].map((v) => v ?? 0)));
  const logs = data.x.map(Math.log10);
  const room = 0.06 * Math.max(Math.max(...logs) - Math.min(...logs), 0.5);
  const [low, high] = [Math.min(...logs) - room, Math.max(...logs) + room];
  const X = (x) => left + ((Math.log10(x) - low) / (high - low)) * (W - left - right);
  const Y = (y) => H - bottom - (y / (most * 1.06)) * (H - top - bottom);

  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 25];
  const step = steps.find((s) => most / s <= 8) ?? 25;
  for (let y = 0; y <= most * 1.05; y += step) {
    make(svg, "line", { class: "grid", x1: left, x2: W - right, y1: Y(y), y2: Y(y) });
    const label = Number(y.toFixed(1)).toString();
    make(svg, "text", { class: "tick", x: left - 7, y: Y(y) + 4, "text-anchor": "end" }, label);
  }
  const factors = high - low < 2.3 ? [1, 2, 5] : [1];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const x of factors.map((f) => f * 10 ** power)) {
      if (Math.log10(x) < low || Math.log10(x) > high) continue;
      make(svg, "line", { class: "grid", x1: X(x), x2: X(x), y1: top, y2: H - bottom });
      const label = Number(x.toPrecision(1)).toLocaleString("en");
      make(svg, "text", { class: "tick", x: X(x), y: H - bottom + 18, "text-anchor": "middle" }, label);
    }
  }
  make(svg, "line", { class: "edge", x1: left, x2: W - right, y1: H - bottom, y2: H - bottom });
  make(svg, "line", { class: "edge", x1: left, x2: left, y1: top, y2: H - bottom });
  const middle = (left + W - right) / 2;
  make(svg, "text", { class: "tick", x: middle, y: H - 7, "text-anchor": "middle" }, data.axes[0]);
  const turn = `translate(13 ${(top + H - bottom) / 2}) rotate(-90)`;
  make(svg, "text", { class: "tick", transform: turn, "text-anchor": "middle" }, data.axes[1]);

  for (const p of points) {
    const group = make(svg, "g", { class: "point" });
    const change = (p.b - p.a).toFixed(1).replace("-", "\u2212");
    make(group, "title", {}, `${p.name}: ${p.a.toFixed(1)}, then ${p.b.toFixed(1)} (${change})`);
    make(group, "line", { class: "change", x1: X(p.x), x2: X(p.x), y1: Y(p.a), y2: Y(p.b) });
    make(group, "circle", { class: "first", cx: X(p.x), cy: Y(p.a), r: 4.5 });
    make(group, "rect", { class: "second", x: X(p.x) - 4.5, y: Y(p.b) - 4.5, width: 9, height: 9 });
  }
  namePoints(svg, points, X, Y, make, W - right, top, H - bottom);
}

// Names stand beside the points that change most, where nothing else is.
function namePoints(svg, points, X, Y, make, right, top, bottom) {
  const taken = points.flatMap((p) =>
    [p.a, p.b].map((y) => ({ l: X(p.x) - 5, r: X(p.x) + 5, t: Y(y) - 5, b: Y(y) + 5 })));
  const free = (box) =>
    box.r <= right && box.l > 50 && box.t >= top && box.b <= bottom &&
    !taken.some((o) => box.l < o.r && o.l < box.r && box.t < o.b && o.t < box.b);
  const widest = [...points].sort((p, q) => Math.abs(q.b - q.a) - Math.abs(p.b - p.a));
  for (const p of widest.slice(0, 10)) {
    const [x, y] = [X(p.x), Y(Math.max(p.a, p.b))];
    const text = make(svg, "text", { class: "name" }, p.name);
    const width = text.getBBox().width;
    const tries = [
      [x + 9, y + 4], [x - 9 - width, y + 4], [x - width / 2, y - 10],
      [x - width / 2, Y(Math.min(p.a, p.b)) + 18], [x + 8, y - 7], [x - 8 - width, y - 7],
    ];
    const place = tries.find(([l, base]) => free({ l, r: l + width, t: base - 11, b: base + 3 }));
    if (!place) {
      text.remove();
      continue;
    }
    const [l, base] = place;
    taken.push({ l, r: l + width, t: base - 11, b: base + 3 });
    text.setAttribute("x", l);
    text.setAttribute("y", base);
  }
}
