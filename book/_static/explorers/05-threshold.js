/* Chapter 05: accuracy of one filter with one threshold, exactly, by inversion of the characteristic function. */
{
  const { normal, number, range } = mvnbExplorer;
  const RATIOS = range(0, 0.95, 39);
  const SIZES = range(10, 1e5, 25, true).map(Math.round);

  // The Faddeeva function by Weideman's rational expansion, accurate to about twelve digits; its real part alone is needed.
  const N = 32;
  const L = Math.sqrt(N / Math.SQRT2);
  const COEFFICIENTS = range(1, N, N).map((n) => {
    const angles = range(1 - 2 * N, 2 * N - 1, 4 * N - 1).map((j) => (j * Math.PI) / (2 * N));
    const terms = angles.map((a) => Math.cos(n * a) * Math.exp(-((L * Math.tan(a / 2)) ** 2)) * (L ** 2 + (L * Math.tan(a / 2)) ** 2));
    return terms.reduce((sum, term) => sum + term, 0) / (4 * N);
  });
  const faddeeva = (x, y) => {
    const [a, b] = [L + y, -x]; // L - iz
    const size = a * a + b * b;
    const [c, d] = [((L - y) * a + x * b) / size, (x * a - (L - y) * b) / size]; // (L + iz) / (L - iz)
    let [p, q] = [0, 0];
    for (let n = N - 1; n >= 0; n--) [p, q] = [p * c - q * d + COEFFICIENTS[n], p * d + q * c];
    const [e, f] = [(a * a - b * b) / size ** 2, (-2 * a * b) / size ** 2]; // (L - iz)^-2
    return 2 * (p * e - q * f) + a / size / Math.sqrt(Math.PI);
  };

  /** Gauss-Legendre with 20 nodes on each of 60 parts of (0, 1), then t^3: denser towards 0. */
  const legendre = range(0, 19, 20).map((i) => {
    let x = Math.cos((Math.PI * (i + 0.75)) / 20.5);
    for (let step = 0; ; step++) {
      let [before, now] = [1, x];
      for (let n = 2; n <= 20; n++) [before, now] = [now, ((2 * n - 1) * x * now - (n - 1) * before) / n];
      const slope = (20 * (x * now - before)) / (x * x - 1);
      if (step > 8) return [x, 2 / ((1 - x * x) * slope ** 2)];
      x -= now / slope;
    }
  });
  const RULE = range(0, 59, 60).flatMap((part) => legendre.map(([x, w]) => {
    const t = (part + (x + 1) / 2) / 60;
    return [t ** 3, (3 * t ** 2 * w) / 120];
  }));

  const density = (x) => Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
  /** Variance of one noise response at the threshold b <= 0; s is the scale of the noise along the filter. */
  const variance = (s, b) => 2 * ((s ** 2 + b ** 2) * normal(b / s) + b * s * density(b / s));
  /** Accuracy of the filter with c = 1 and the threshold `ratio` in [0, 1), k noise patches. */
  const accuracy = (ratio, k, s) => {
    const [own, tail] = [1 - ratio, normal(-ratio / s)];
    const silent = ratio ? (1 - 2 * tail) ** k : 0;
    const spread = Math.sqrt(k * Math.max(variance(s, -ratio), 1e-300));
    const upper = 200 / Math.max(Math.min(spread, s), 1e-3 * s);
    const front = Math.exp(-((ratio / s) ** 2) / 2);
    let sum = 0;
    for (const [t, weight] of RULE) {
      const u = upper * t;
      const one = 1 - 2 * tail + front * faddeeva((u * s) / Math.SQRT2, ratio / s / Math.SQRT2);
      sum += (weight * Math.sin(u * own) * (one ** k - silent)) / t;
    }
    return Math.min(1, Math.max(0, silent + (1 - silent) / 2 + sum / Math.PI));
  };
  const gaussian = (ratio, k, s) => normal((1 - ratio) / Math.sqrt(Math.max(k * variance(s, -ratio), 1e-300)));

  mvnbExplorer("05-threshold", {
    title: "Accuracy of one filter with one threshold",
    controls: [
      { name: "ratio", label: "threshold |b|/c", min: 0, max: 0.95, step: 0.05, value: 0.6 },
      { name: "tilt", label: "filter off the signal, v/c", min: 0, max: 3, step: 0.1, value: 0 },
      { name: "k", label: "noise patches k", min: 10, max: 1e5, value: 1000, log: true, integer: true },
      { name: "level", label: "noise σ, times log k/√k", min: 0.25, max: 2, step: 0.05, value: 1 },
    ],
    compute({ ratio, tilt, k, level }) {
      const scale = (m) => ((level * Math.log(m)) / Math.sqrt(m)) * Math.hypot(1, tilt);
      const ratios = [ratio, ...RATIOS];
      const sizes = [k, ...SIZES];
      return {
        ratios,
        sizes,
        exact: ratios.map((r) => accuracy(r, k, scale(k))),
        gaussian: ratios.map((r) => gaussian(r, k, scale(k))),
        across: sizes.map((m) => accuracy(ratio, m, scale(m))),
        linear: sizes.map((m) => normal(1 / (scale(m) * Math.sqrt(m)))),
        survivors: 2 * k * normal(-ratio / scale(k)),
      };
    },
    draw({ ratio, k }, { exact, gaussian, across, linear, survivors }) {
      const over = (grid, values) => grid.map((x, i) => [x, values[i + 1]]);
      const y = { label: "accuracy", domain: [0.48, 1.02], ticks: [0.5, 0.6, 0.7, 0.8, 0.9, 1] };
      return {
        readout:
          `The threshold leaves ${number(100 * (1 - ratio), 2)} % of the signal and on average ${number(survivors, 2)} of ${number(k)} noise ` +
          `patches: right in ${number(100 * exact[0])} % of the cases, the sum without a threshold in ${number(100 * linear[0])} %.`,
        panels: [
          {
            title: `${number(k)} noise patches`,
            x: { label: "threshold |b|/c", domain: [0, 1] },
            y,
            marks: [
              { line: over(RATIOS, exact), color: "blue", label: "exact" },
              { line: over(RATIOS, gaussian), color: "grey", style: "dashed", label: "Gaussian sum" },
              { vertical: ratio, style: "dotted" },
              { points: [[ratio, exact[0]]], color: "blue" },
            ],
          },
          {
            title: `Threshold at ${number(ratio)} of the signal`,
            x: { label: "noise patches k", domain: [10, 1e5], log: true },
            y,
            marks: [
              { line: over(SIZES, across), color: "blue", label: "with the threshold" },
              { line: over(SIZES, linear), color: "brown", style: "dashed", label: "linear" },
              { vertical: k, style: "dotted" },
              { points: [[k, across[0]]], color: "blue" },
              { points: [[k, linear[0]]], color: "brown" },
            ],
          },
        ],
      };
    },
  });
}
