/* Chapter 15: what finding a token needs and what reading it needs, at the noise level sigma = 1. */
{
  const { normal, number, range } = mvnbExplorer;
  const MARGINS = range(0, 16, 161);
  const LENGTHS = range(300, 1e6, 41, true);

  /** log Gamma, by Lanczos. */
  const G = [676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
    -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7];
  const logGamma = (x) => {
    const sum = G.reduce((total, g, i) => total + g / (x + i), 0.99999999999980993);
    const t = x + 6.5;
    return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(t) - t + Math.log(sum);
  };
  /** The regularised incomplete beta function, by its continued fraction. */
  const beta = (a, b, x) => {
    if (x <= 0 || x >= 1) return x >= 1 ? 1 : 0;
    if (x > (a + 1) / (a + b + 2)) return 1 - beta(b, a, 1 - x);
    const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x)) / a;
    let [c, d] = [1, 1 / (1 - ((a + b) * x) / (a + 1))];
    let product = d;
    for (let m = 1; m < 5000; m++) {
      const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
      const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
      for (const term of [even, odd]) {
        d = 1 / (1 + term * d);
        c = 1 + term / c;
        product *= c * d;
      }
      if (Math.abs(c * d - 1) < 1e-15) break;
    }
    return front * product;
  };
  /** The needle is found when fewer than k of n noise scores exceed it: a binomial law. */
  const found = (margin, n, k) => beta(n - k + 1, k, normal(margin));
  const read = (margin, n) => 1 / (1 + n * Math.exp(0.5 - margin));
  /** The x with normal(x) = p, by bisection: normal rises. */
  const quantile = (p) => {
    let [low, high] = [-9, 9];
    for (let i = 0; i < 60; i++) normal((low + high) / 2) < p ? (low = (low + high) / 2) : (high = (low + high) / 2);
    return (low + high) / 2;
  };
  const readingMargin = (n) => Math.log(n) + 0.5;

  mvnbExplorer("15-find-and-read", {
    title: "Finding a token against reading it",
    controls: [
      { name: "n", label: "tokens n", min: 1000, max: 1e6, value: 1e5, log: true, integer: true },
      { name: "share", label: "share that is kept, k/n", min: 0.001, max: 0.1, value: 0.01, log: true, steps: 40,
        show: (v) => `${number(100 * v)} %` },
      { name: "margin", label: "margin Δ/σ", min: 0, max: 16, step: 0.1, value: 6 },
    ],
    compute({ n, share, margin }) {
      const k = Math.max(1, Math.round(share * n));
      const margins = [margin, ...MARGINS];
      return {
        margins,
        lengths: LENGTHS,
        k,
        read: margins.map((m) => read(m, n)),
        again: margins.map((m) => read(m, k)),
        found: margins.map((m) => found(m, n, k)),
        toRead: LENGTHS.map(readingMargin),
        toReadAgain: LENGTHS.map((m) => readingMargin(share * m)),
        toFind: -quantile(share),
      };
    },
    draw({ n, share, margin }, { k, read, again, found, toRead, toReadAgain, toFind }) {
      const both = again.map((weight, i) => weight * found[i]);
      const against = (values) => MARGINS.map((m, i) => [m, values[i + 1]]);
      const over = (values) => LENGTHS.map((m, i) => [m, values[i]]);
      return {
        readout:
          `Of ${number(n)} tokens ${number(k)} are kept. At the margin ${number(margin)} the needle has ${number(100 * read[0], 2)} % ` +
          `of the weight among all tokens. It is found with probability ${number(found[0], 2)}, and then has ` +
          `${number(100 * again[0], 2)} % of the weight.`,
        panels: [
          {
            title: "What a margin is good for",
            x: { label: "margin Δ/σ", domain: [0, 16] },
            y: { label: "probability, weight", domain: [0, 1.05] },
            marks: [
              { line: against(read), color: "blue", label: "weight, all tokens" },
              { line: against(both), color: "green", style: "dashed", label: "found, read again" },
              { line: against(found), color: "orange", label: "found" },
              { vertical: margin, style: "dotted" },
              { points: [[margin, read[0]]], color: "blue" },
              { points: [[margin, both[0]]], color: "green" },
              { points: [[margin, found[0]]], color: "orange" },
            ],
          },
          {
            title: `Margin needed, k/n = ${number(100 * share)} %`,
            x: { label: "tokens n", domain: [300, 1e6], log: true },
            y: { label: "margin Δ/σ", domain: [0, 16] },
            marks: [
              { line: over(toRead), color: "blue", label: "read: half of the weight" },
              { line: over(toReadAgain), color: "green", style: "dashed", label: "read again among k" },
              { horizontal: toFind, color: "orange", label: "find" },
              { vertical: n, style: "dotted" },
              { points: [[n, margin]] },
            ],
          },
        ],
      };
    },
  });
}
