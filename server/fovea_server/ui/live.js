// Computes live figures from a model's counters: waiting requests, images/s, 99th percentile of durations.

const EVERY_MS = 2000;
// Number of samples. At one per EVERY_MS, they cover the last half minute.
const WINDOW = 15;

/**
 * Read the counters of a model while the page is visible.
 * @param {() => Promise<object | null>} read returns the result of `Fovea.statistics`
 * @param {(words: {queue: string, rate: string, p99: string}) => void} show called with the figures as text
 * @returns {() => void} starts again, for example with another model
 */
export function follow(read, show) {
  let samples = [];
  let timer = 0;
  let round = 0;

  async function sample(current) {
    const statistics = document.hidden ? null : await read().catch(() => null);
    if (current !== round) return;
    if (statistics) {
      samples = addSample(samples, { at: performance.now(), statistics });
      show(formatFigures(figures(samples)));
    } else if (!document.hidden) {
      samples = [];
      show(formatFigures({ queue: null, rate: null, p99: null }));
    }
    timer = setTimeout(sample, EVERY_MS, current);
  }

  return function restart() {
    clearTimeout(timer);
    samples = [];
    round += 1;
    sample(round);
  };
}

/**
 * Return the latest samples with a new one. Counters fall if the server has restarted; then only the new
 * sample stays.
 */
export function addSample(samples, sample) {
  const former = samples.at(-1)?.statistics;
  const fell = former && [countImages, countResponses].some((count) => count(sample.statistics) < count(former));
  return [...(fell ? [] : samples), sample].slice(-WINDOW);
}

/** Format figures as text. A dash stands for an unknown figure. */
const formatFigures = ({ queue, rate, p99 }) => ({
  queue: queue === null ? "–" : String(queue),
  rate: rate === null ? "–" : rate.toFixed(1),
  p99: p99 === null ? "–" : duration(p99),
});

const duration = (s) => (s < 1 ? `${Math.round(1000 * s)} ms` : `${s.toFixed(1)} s`);

/** Compute the figures between the first and the last sample. */
export function figures(samples) {
  const first = samples[0];
  const last = samples[samples.length - 1];
  const seconds = (last.at - first.at) / 1000;
  const rate = seconds ? (countImages(last.statistics) - countImages(first.statistics)) / seconds : null;
  const waiting = last.statistics.versions.reduce((sum, each) => sum + each.pending, 0);
  const p99 = quantile(0.99, first.statistics.durations, last.statistics.durations);
  return { queue: waiting, rate, p99 };
}

const countImages = ({ versions }) => versions.reduce((sum, each) => sum + each.inference_count, 0);
const countResponses = ({ durations }) => durations["+Inf"] ?? 0;

/**
 * Return a quantile of the durations of requests between two readings, in seconds. Return null if there
 * was no request. `share` is the quantile, 0 to 1.
 */
export function quantile(share, before, after) {
  const buckets = Object.entries(after).map(([bound, count]) => [
    bound === "+Inf" ? Infinity : Number(bound),
    count - (before[bound] ?? 0),
  ]);
  const all = buckets.at(-1)?.[1];
  if (!all) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= share * all) {
      // Prometheus does the same: it assumes that durations are spread evenly within a bucket.
      return bound === Infinity ? low : low + ((bound - low) * (share * all - below)) / (count - below);
    }
    [low, below] = [bound, count];
  }
  return low;
}
