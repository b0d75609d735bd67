/* Chapter 12: which of two kinds of features keep a weight under the nuclear norm, exactly: gain against price. */
{
  const { number, range } = mvnbExplorer;
  const GAMMA = 0.3; // correlation of the environmental features
  const COUNTS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 44, 60, 80]; // shared features; cells reach half-way to the next, in logarithms
  const EDGES = [0.75, ...COUNTS.slice(1).map((x, i) => Math.sqrt(x * COUNTS[i])), 92];
  const STRENGTHS = range(0.05, 0.5, 16);
  const SHARES = range(1e-3, 0.95, 25, true);

  /** E|l'(m)| and E[|l'(m)| z] for a feature z where m is `weight` times the sum of `n` features of correlation gamma. */
  const pushes = (weight, n, gamma) => {
    const [a, plus, minus] = [weight / 2, 0.5 + gamma, 0.5 - gamma]; // u = s weight = a + ib
    const [grown, shrunk, step] = [Math.exp(a), Math.exp(-a), Math.PI / (20 + weight * n)];
    let [slope, push] = [0, 0];
    for (let t = 0; t < 7; t += step) {
      const b = weight * t;
      const [cos, sin, less, square] = [Math.cos(b), Math.sin(b), 2 * Math.sin(b / 2) ** 2, a * a + b * b];
      // minus (exp(u) - 1) - plus (exp(-u) - 1), and minus exp(u) + plus exp(-u)
      const [x, y] = [minus * (Math.expm1(a) * cos - less) - plus * (Math.expm1(-a) * cos - less), (minus * grown + plus * shrunk) * sin];
      const [v, w] = [(minus * grown + plus * shrunk) * cos, (minus * grown - plus * shrunk) * sin];
      const [p, q] = [(x * a + y * b) / square, (y * a - x * b) / square]; // E exp(-uz)
      const angle = (n - 1) * Math.atan2(q, p);
      const mass = ((t ? step : step / 2) * (p * p + q * q) ** ((n - 1) / 2)) / Math.cosh(Math.PI * t);
      const [c, d] = [mass * Math.cos(angle), mass * Math.sin(angle)];
      slope += p * c - q * d;
      push += (((p - v) * a + (q - w) * b) * c - ((q - w) * a - (p - v) * b) * d) / square; // E[z exp(-uz)] = (E exp(-uz) - ...) / u
      if (mass < 1e-12 * slope) break;
    }
    return { slope, push };
  };

  /** Prices of a group of n features that are alone, and of m others beside it; the largest weight that leaves the group. */
  const prices = (n, gamma, m, other) => {
    const [v, u, a, b] = [1 / 3 - gamma ** 2, 1 / 3 - other ** 2, n * gamma ** 2, m * other ** 2];
    const own = (n - 1) * Math.sqrt(v) + Math.sqrt(v + a);
    const beside = (m - 1) * Math.sqrt(u) + Math.sqrt(((v + a) * (u + b) - a * b) / (v + a));
    return { own, beside, limit: (n * gamma) / 2 / own };
  };

  /** E|l'(m)| at the optimum of n features that are alone under the weight lambda, below their limit. */
  const slopeAlone = (lambda, n, gamma) => {
    const price = (lambda * prices(n, gamma, 1, 0).own) / n;
    const off = (log) => pushes(Math.exp(log), n, gamma).push / price - 1;
    let [low, high] = [Math.log(0.05), Math.log(0.05)];
    let [above, below] = [off(low), off(low)];
    while (above < 0) above = off((low -= 1));
    while (below > 0) below = off((high += 1));
    let middle = low;
    for (let last = 0, k = 0; high - low > 1e-9 && k < 40; k++) { // false position, halving the end that stays
      middle = (low * below - high * above) / (below - above);
      const value = off(middle);
      if (Math.abs(value) < 1e-9) break;
      if (value > 0) [low, above, below, last] = [middle, value, last > 0 ? below / 2 : below, 1];
      else [high, below, above, last] = [middle, value, last < 0 ? above / 2 : above, -1];
    }
    return pushes(Math.exp(middle), n, gamma).slope;
  };

  /** The weight; by how much environmental features fall short of their price beside shared ones, and these beside them. */
  const both = (share, r, strength, n, slope) => {
    const [one, other] = [prices(r, strength, n, GAMMA), prices(n, GAMMA, r, strength)];
    const lambda = share * other.limit;
    const beside = lambda < one.limit ? 1 - (n * GAMMA * slopeAlone(lambda, r, strength)) / (lambda * one.beside) : -1;
    return [lambda, beside, 1 - (r * strength * (slope ?? slopeAlone(lambda, n, GAMMA))) / (lambda * other.beside)];
  };

  mvnbExplorer("12-survivors", {
    title: "Which features keep a weight",
    controls: [
      { name: "r", label: "shared features r", min: 1, max: 80, step: 1, value: 16 },
      { name: "strength", label: "their correlation", min: 0.05, max: 0.5, step: 0.01, value: 0.5 },
      { name: "n", label: "environmental features n", min: 1, max: 80, step: 1, value: 44 },
      { name: "share", label: "weight λ over the largest", min: 1e-3, max: 0.95, value: 0.1, log: true, steps: 60 },
    ],
    compute({ r, strength, n, share }) {
      const slope = slopeAlone(share * prices(n, GAMMA, 1, 0).limit, n, GAMMA);
      return {
        counts: COUNTS,
        strengths: STRENGTHS,
        shares: SHARES,
        own: both(share, r, strength, n, slope),
        map: STRENGTHS.map((s) => COUNTS.map((k) => both(share, k, s, n, slope).slice(1))),
        dial: SHARES.map((f) => both(f, r, strength, n)),
      };
    },
    draw({ r, strength, n, share }, { own, map, dial }) {
      const half = (STRENGTHS[1] - STRENGTHS[0]) / 2;
      const y = [...STRENGTHS.map((s) => s - half), 0.5 + half];
      /** Cells in which only one kind is left: the shortfall of the other one is positive. */
      const only = (k, color, label) => {
        const values = map.map((row) => row.map((one) => (one[k] > 0 ? 0.5 : 0)));
        const inside = values.flatMap((row, j) => row.flatMap((value, i) => (value ? [[COUNTS[i], STRENGTHS[j]]] : [])));
        const at = inside[Math.floor(inside.length / 2)];
        return { cells: { x: EDGES, y, values }, color, ...(at && { label, at }) };
      };
      const kept = (k, size) => dial.map((one, i) => [SHARES[i], one[k] > 0 ? 0 : size]);
      const [ofShared, ofOthers] = [own[2] > 0 ? 0 : r, own[1] > 0 ? 0 : n];
      const [right, wrong] = [r * strength ** 2, n * GAMMA ** 2];
      return {
        readout:
          `Nuclear norm, λ = ${number(own[0])}: ${ofShared} of ${r} shared and ${ofOthers} of ${n} environmental features keep a weight. ` +
          `Strong weight decay keeps all ${r + n}; its mean margin elsewhere has the sign of ${number(right)} − ${number(wrong)}.`,
        panels: [
          {
            title: "Features that keep a weight",
            x: { label: "shared features r", domain: [0.75, 92], log: true, ticks: [1, 3, 10, 30, 80] },
            y: { label: "their correlation", domain: [0.05 - half, 0.5 + half], ticks: [0.1, 0.2, 0.3, 0.4, 0.5] },
            marks: [
              only(0, "green", "only shared"),
              only(1, "brown", "only environmental"),
              { horizontal: GAMMA, style: "dotted" },
              { points: [[r, strength]], color: "orange" },
            ],
          },
          {
            title: "Over the weight of the norm",
            x: { label: "weight λ over the largest", domain: [1e-3, 1], log: true, ticks: [1e-3, 0.01, 0.1, 1] },
            y: { label: "features with a weight", domain: [-3, 85], ticks: [0, 20, 40, 60, 80] },
            marks: [
              { line: kept(2, r), color: "green", label: "shared" },
              { line: kept(1, n), color: "brown", style: "dashed", label: "environmental" },
              { vertical: share, style: "dotted" },
              { points: [[share, ofShared]], color: "green" },
              { points: [[share, ofOthers]], color: "brown" },
            ],
          },
        ],
      };
    },
  });
}
