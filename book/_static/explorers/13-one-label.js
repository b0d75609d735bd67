/* Chapter 13: the shortest fit to one labelled point, y = z1 + z2, on the representation (z1, sqrt(beta) z2). */
{
  const { number, range } = mvnbExplorer;
  const WEIGHTS = range(1e-3, 100, 121, true);
  const COUNT = 2001; // directions of a standard normal point are uniform; a point and its negative have the same fit
  const [LEFT, BOTTOM, WIDE, HIGH, TOP] = [-1.8, -1.2, 6.3, 4.4, 8]; // the plane, at equal scales; the largest distance drawn
  const unit = (degrees) => [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  const fit = ([c, s], beta) => [c, beta * s].map((x) => ((c + s) * x) / (c * c + beta * s * s));
  const distance = ([c, s], beta) => Math.abs(c - beta * s) / (c * c + beta * s * s); // from (1, 1)

  const directions = range(-45 + 90 / COUNT, 135 - 90 / COUNT, COUNT).map(unit);
  /** Median and upper tenth of the distances over all directions. */
  const levels = (beta) => {
    const all = Float64Array.from(directions, (z) => distance(z, beta)).sort();
    return [0.5, 0.9].map((share) => all[Math.round(share * (COUNT - 1))]);
  };
  const LEVELS = WEIGHTS.map(levels);

  const fixed = (value) => (Math.round(100 * value) / 100).toFixed(2).replace("-", "−");
  const pair = (values) => `(${values.map(fixed).join(", ")})`;
  const point = (angle) => unit(angle).map((x) => Math.sqrt(5) * x); // as long as the chapter's point (1, 2)

  mvnbExplorer("13-one-label", {
    title: "The shortest fit to one label",
    controls: [
      { name: "angle", label: "direction of the point z", min: 0, max: 180, step: 0.5, value: 63.5, show: (a) => pair(point(a)) },
      { name: "beta", label: "weight β of the second feature", min: 1e-3, max: 100, value: 0.1, log: true, steps: 60 },
    ],
    compute({ angle, beta }) {
      const weights = [beta, ...WEIGHTS];
      const [median, tenth] = [0, 1].map((k) => [levels(beta), ...LEVELS].map((one) => one[k]));
      return {
        weights,
        fits: weights.map((b) => fit(unit(angle), b)),
        distances: weights.map((b) => distance(unit(angle), b)),
        median,
        tenth,
      };
    },
    draw({ angle, beta }, { fits, distances, median, tenth }) {
      const [z, w, own] = [point(angle), fits[0], distances[0]];
      const [c, s] = unit(angle);
      const over = (values) => WEIGHTS.map((b, i) => [b, values[i + 1]]);
      // The part of the way from the truth to the fit that lies in the picture.
      const ends = [[LEFT, LEFT + WIDE], [BOTTOM, BOTTOM + HIGH]];
      const part = Math.min(1, ...w.map((x, k) => (ends[k][Number(x > 1)] - 1) / (x - 1)).filter(Number.isFinite));
      const radius = Math.hypot(w[0], w[1] / Math.sqrt(beta));
      const ellipse = range(0, 360, 181).map(unit).map(([x, y]) => [radius * x, radius * Math.sqrt(beta) * y]);
      const spot = (at, inside, text) => ({ points: inside ? [at] : [], color: "orange", label: text, at });
      return {
        readout:
          `Label ${fixed(z[0] + z[1])} at ${pair(z)}, β = ${number(beta)}: the shortest fit is ${pair(w)}, ${fixed(own)} from the ` +
          `truth. Over random points, the median is ${fixed(median[0])}; one in ten exceeds ${fixed(tenth[0])}.`,
        panels: [
          {
            title: `Coefficients, label ${fixed(z[0] + z[1])} at ${pair(z)}`,
            x: { label: "w₁", domain: ends[0], ticks: [-1, 0, 1, 2, 3, 4] },
            y: { label: "w₂", domain: ends[1], ticks: [-1, 0, 1, 2, 3] },
            marks: [
              { line: ellipse, color: "grey", style: "thin dashed", label: "equal length" },
              { line: [-9, 9].map((t) => [1 + t * s, 1 - t * c]), style: "thin dotted", label: "fits the label" },
              { line: fits.slice(1), color: "blue", style: "thin", label: "all β" },
              { line: [[1, 1], w], color: "orange" },
              { points: [[1, 1]], color: "green", label: "truth" },
              spot(w.map((x) => 1 + part * (x - 1)), part === 1, part === 1 ? "shortest fit" : `fit at ${pair(w)}`),
            ],
          },
          {
            title: "Distance from the truth",
            x: { label: "weight β", domain: [8e-4, 125], log: true, ticks: [1e-3, 0.01, 0.1, 1, 10, 100] },
            y: { label: "distance", domain: [0, TOP] },
            marks: [
              { line: over(tenth), color: "grey", style: "dashed", label: "one in ten is worse" },
              { line: over(median), color: "grey", label: "median" },
              { line: over(distances), color: "blue", label: "this point" },
              { vertical: beta, style: "dotted" },
              spot([beta, Math.min(own, TOP)], own <= TOP, own <= TOP ? "" : `distance ${fixed(own)}`),
            ],
          },
        ],
      };
    },
  });
}
