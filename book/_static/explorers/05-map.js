/* Chapter 05: forces on a filter and its threshold over the plane of both, the path of descent, and accuracy; all exact. */
{
  const { normal, number, range } = mvnbExplorer;
  const RATIOS = range(0, 0.95, 39);
  const COLUMNS = range(0.02, 1.2, 19, true);
  const ROWS = range(0, 0.95, 20);
  const STEPS = [10, 13, 18, 24, 32, 42, 56, 75, 100, 133, 178, 237, 316, 422, 562, 750, 1000, 1334, 1778, 2371, 3162, 4217, 5623, 7499, 10000];
  // Descent on the mean loss with the steps 0.1 and 0.1/k, from c = 1e-6 and b = 0, by the number of noise patches.
  const PATHS = {
    100: {
      c: [0.0962020338, 0.0979375003, 0.100648339, 0.103761121, 0.107712728, 0.112371805, 0.118448371, 0.126010285, 0.135008974, 0.145620582, 0.158370348, 0.172919783, 0.189695883, 0.208851968, 0.230157623, 0.253981225, 0.280029296, 0.308247011, 0.338170395, 0.369422968, 0.401210297, 0.432521668, 0.462088712, 0.488542381, 0.510491859],
      ratio: [0.0191175845, 0.028642576, 0.0434140419, 0.0595252532, 0.0787296423, 0.0997907754, 0.125043932, 0.153517894, 0.183887476, 0.215726192, 0.24944296, 0.283148068, 0.317079831, 0.35080366, 0.383434138, 0.41520265, 0.445500319, 0.474230188, 0.501029636, 0.525806751, 0.54828707, 0.568228233, 0.585378742, 0.599539423, 0.61054377],
    },
    1000: {
      c: [0.0454878634, 0.0467713314, 0.0488450899, 0.051235778, 0.0542774956, 0.0578788574, 0.0626107703, 0.0685715697, 0.075793689, 0.0845216824, 0.095352225, 0.108221374, 0.123801192, 0.142654329, 0.165087686, 0.192205677, 0.224641512, 0.263599956, 0.310135496, 0.365942314, 0.432706459, 0.512458785, 0.607482362, 0.720577278, 0.854687837],
      ratio: [0.024162488, 0.0311146587, 0.0416354688, 0.0528114874, 0.065781056, 0.079629561, 0.0958095756, 0.113617151, 0.132236199, 0.151480385, 0.171695191, 0.191870729, 0.212282885, 0.232804794, 0.253022896, 0.273201877, 0.293078173, 0.312709303, 0.331975072, 0.350950119, 0.369590031, 0.387880595, 0.405799096, 0.423356602, 0.440526257],
    },
    3000: {
      c: [0.0343382657, 0.0355501985, 0.0372723029, 0.0392838201, 0.0418423752, 0.044873846, 0.0488625439, 0.0538988452, 0.0600214048, 0.0674532319, 0.0767263223, 0.0878168487, 0.101342585, 0.117844121, 0.137651969, 0.161818144, 0.191001402, 0.226396454, 0.269089349, 0.320778759, 0.383184003, 0.458360791, 0.548599623, 0.656649593, 0.785318719],
      ratio: [0.018861462, 0.0238625604, 0.0315230406, 0.0395850637, 0.0488757867, 0.0587276062, 0.0701621335, 0.0826694972, 0.095678687, 0.109069482, 0.123092392, 0.137058591, 0.151171035, 0.165351823, 0.179323505, 0.193275684, 0.20703141, 0.220634489, 0.234004536, 0.247195205, 0.260176449, 0.272937741, 0.285460771, 0.297748466, 0.309774225],
    },
  };

  // The Faddeeva function by Weideman's rational expansion, accurate to about twelve digits; real and imaginary part.
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
    return [2 * (p * e - q * f) + a / size / Math.sqrt(Math.PI), 2 * (p * f + q * e) - b / size / Math.sqrt(Math.PI)];
  };

  /** Gauss-Legendre with 20 nodes on each part of (0, 1), then t^3: denser towards 0. */
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
  const rule = (parts) => range(0, parts - 1, parts).flatMap((part) => legendre.map(([x, w]) => {
    const t = (part + (x + 1) / 2) / parts;
    return [t ** 3, (3 * t ** 2 * w) / (2 * parts)];
  }));
  const RULE = rule(60);
  const SHORT = rule(8).map(([t, weight]) => [12 * t, (24 * weight) / Math.sinh(12 * Math.PI * t)]);

  const scale = (k) => Math.log(k) / Math.sqrt(k);
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
      const one = 1 - 2 * tail + front * faddeeva((u * s) / Math.SQRT2, ratio / s / Math.SQRT2)[0];
      sum += (weight * Math.sin(u * own) * (one ** k - silent)) / t;
    }
    return Math.min(1, Math.max(0, silent + (1 - silent) / 2 + sum / Math.PI));
  };
  /** Slopes of the mean loss in c and in b of a filter (c, v = tilt c) with the bias -ratio c. */
  const forces = (c, ratio, k, tilt) => {
    const size = c * Math.hypot(1, tilt);
    const s = scale(k) * size;
    const [b, own] = [-ratio * c, c * (1 - ratio)];
    const rest = 1 - 2 * normal(b / s);
    const front = Math.exp(-((b / s) ** 2) / 2) / 2;
    let [pull, push, wrong] = [0, 0, 0.5];
    for (const [u, weight] of SHORT) {
      const [x, y] = faddeeva((u * s) / Math.SQRT2, -b / s / Math.SQRT2);
      const one = rest + 2 * front * x;
      const others = weight * one ** (k - 1);
      pull += k * others * Math.cos(u * own) * s ** 2 * u * front * x;
      push += k * others * Math.cos(u * own) * front * y;
      wrong -= 0.5 * others * one * Math.sin(u * own);
    }
    return [(c * pull) / size ** 2 - wrong, push - wrong];
  };

  mvnbExplorer("05-map", {
    title: "A filter c and its threshold |b|",
    controls: [
      { name: "at", label: "training step", min: 0, max: STEPS.length - 1, step: 1, value: 20, play: 8, show: (i) => number(STEPS[i]) },
      { name: "k", label: "noise patches k", options: [["100", "100"], ["1000", "1,000"], ["3000", "3,000"]], value: "1000" },
      { name: "tilt", label: "filter off the signal, v/c", min: 0, max: 3, step: 0.1, value: 0 },
    ],
    compute({ at, k: patches, tilt }) {
      const k = Number(patches);
      const path = PATHS[k];
      const [c, ratio] = [path.c[at], path.ratio[at]];
      const s = scale(k) * Math.hypot(1, tilt);
      return {
        steps: STEPS,
        ratios: RATIOS,
        columns: COLUMNS,
        rows: ROWS,
        path: [path.c, path.ratio],
        here: forces(c, ratio, k, tilt),
        map: ROWS.map((r) => COLUMNS.map((x) => forces(x, r, k, tilt))),
        exact: RATIOS.map((r) => accuracy(r, k, s)),
        now: accuracy(ratio, k, s),
        linear: normal(1 / (s * Math.sqrt(k))),
        survivors: 2 * k * normal(-ratio / s),
      };
    },
    draw({ at, k: patches }, { path, here, map, exact, now, linear, survivors }) {
      const [k, c, ratio] = [Number(patches), path[0][at], path[1][at]];
      const edge = Math.sqrt(COLUMNS[1] / COLUMNS[0]);
      const x = [COLUMNS[0] / edge, ...COLUMNS.map((one) => one * edge)];
      const y = [-0.025, ...ROWS.map((one) => one + 0.025)];
      /** Cells in which descent moves the filter and the threshold in these directions. */
      const where = (grows, rises, color, label, at) => {
        const values = map.map((row) => row.map(([p, q]) => ((p < 0) === grows && (q > 0) === rises ? 0.4 : 0)));
        return { cells: { x, y, values }, color, label, at };
      };
      const moves = `${here[0] < 0 ? "grows" : "shrinks"}, its threshold ${here[1] > 0 ? "rises" : "falls"}`;
      return {
        readout:
          `Step ${number(STEPS[at])}: c = ${number(c, 2)}. The threshold leaves ${number(100 * (1 - ratio), 2)} % of the signal and on average ` +
          `${number(survivors, 2)} of ${number(k)} noise patches: right in ${number(100 * now)} % of the cases (without a threshold ` +
          `${number(100 * linear)} %). The filter ${moves}.`,
        panels: [
          {
            title: "Where descent goes",
            x: { label: "filter along the signal, c", domain: [x[0], x[19]], log: true },
            y: { label: "threshold |b|/c", domain: [-0.025, 0.975], ticks: [0, 0.2, 0.4, 0.6, 0.8] },
            marks: [
              where(true, false, "yellow", "threshold falls", [0.028, 0.62]),
              where(false, true, "sky", "filter shrinks", [0.9, 0.12]),
              where(true, true, "green", "both grow", [0.9, 0.5]),
              { line: path[0].map((one, i) => [one, path[1][i]]), color: "blue", label: "descent" },
              { points: [[c, ratio]], color: "blue" },
            ],
          },
          {
            title: `Accuracy with ${number(k)} noise patches`,
            x: { label: "threshold |b|/c", domain: [-0.025, 1] },
            y: { label: "accuracy", domain: [0.48, 1.02], ticks: [0.5, 0.6, 0.7, 0.8, 0.9, 1] },
            marks: [
              { line: RATIOS.map((r, i) => [r, exact[i]]), color: "ink", label: "exact" },
              { horizontal: linear, style: "dotted", color: "grey", label: "no threshold" },
              { vertical: ratio, style: "dotted" },
              { points: [[ratio, now]], color: "blue" },
            ],
          },
        ],
      };
    },
  });
}
