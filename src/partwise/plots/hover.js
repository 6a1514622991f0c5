// Shows the numbers of the point that is nearest to the pointer, from the CSV of its figure. Pages are complete without it.
for (const figure of document.querySelectorAll("figure")) {
  const link = figure.querySelector("a[data-numbers]"), shown = figure.querySelector("output");
  if (!link) continue;
  const cells = (line) => (line.match(/(?<=^|,)("(?:[^"]|"")*"|[^,]*)/g) || []).map((cell) =>
    cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell);
  const text = decodeURIComponent(link.href.slice(link.href.indexOf(",") + 1));
  const [head, ...rows] = text.trim().split("\n").map(cells);
  for (const svg of figure.querySelectorAll("svg[data-places]")) {
    const [left, top, right, bottom] = svg.dataset.places.split(" ").map(Number);
    const log = svg.dataset.log ? Math.log10 : (value) => value;
    const [x0, x1] = svg.dataset.limits.split(" ").slice(0, 2).map((value) => log(Number(value)));
    const [y0, y1] = svg.dataset.limits.split(" ").slice(2).map(Number);
    const points = rows.map((row, index) => {
      const x = row[head.indexOf(svg.dataset.x)], y = svg.dataset.y ? row[head.indexOf(svg.dataset.y)] : index;
      return { row, x: x === "" ? NaN : left + (right - left) * (log(Number(x)) - x0) / (x1 - x0),
        y: y === "" ? NaN : bottom + (top - bottom) * (Number(y) - y0) / (y1 - y0) };
    }).filter((point) => point.y >= top && point.y <= bottom && point.x >= left - 1 && point.x <= right + 1);
    if (!points.length) continue;
    const ring = document.createElementNS(svg.namespaceURI, "circle");
    for (const [name, value] of [["r", 5], ["fill", "none"], ["stroke", "currentColor"], ["visibility", "hidden"]])
      ring.setAttribute(name, value);
    svg.append(ring);
    shown.hidden = false;
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      const far = (point) => Math.hypot(point.x - x, point.y - y);
      const nearest = points.reduce((best, point) => (far(point) < far(best) ? point : best));
      ring.setAttribute("transform", `translate(${nearest.x} ${nearest.y})`);
      ring.setAttribute("visibility", "visible");
      shown.textContent = head.map((name, index) => nearest.row[index] && `${name} ${nearest.row[index]}`)
        .filter(Boolean).join(" · ");
    });
    svg.addEventListener("pointerleave", () => {
      ring.setAttribute("visibility", "hidden");
      shown.textContent = "";
    });
  }
}
