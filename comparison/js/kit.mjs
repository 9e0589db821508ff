// The command line, the workload and the lines of a history, as in kit/src/lib.rs.
// main({ setup(url), producer(url) -> enqueue(job), work(url, slots, run) })
import { openSync, writeSync } from "node:fs";

export const TIMEOUT = 5;
export const ATTEMPTS = 100;
const PRODUCERS = 4;

/** The clock that all processes of the machine share. */
const now = () => Number(process.hrtime.bigint() / 1000n);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** With one write, so that a process that is killed leaves whole lines. */
function recorder(file) {
  const opened = openSync(file, "a");
  return (event) => writeSync(opened, JSON.stringify(event) + "\n");
}

/** The same numbers for the same seed. */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

async function produce(enqueue, note, seconds, rate, groups, seed) {
  const until = performance.now() + seconds * 1000;
  let count = 0;
  await Promise.all(Array.from({ length: PRODUCERS }, async (_, n) => {
    const any = random(seed * PRODUCERS + n);
    let next = performance.now();
    while (performance.now() < until) {
      const group = `g${Math.floor(any() * groups)}`, burst = 1 + Math.floor(any() * 5);
      for (let i = 0; i < burst; i++) {
        const job = { job: `j${++count}`, group };
        const event = { event: "enqueue", job: job.job, group, process: `p${n}`, begin: now(), outcome: "unknown" };
        note(event);
        try {
          await enqueue(job);
          note({ ...event, end: now(), outcome: "committed" });
        } catch (error) {
          console.error(`enqueue: ${error}`);
          await sleep(200); // the server may be away
        }
      }
      next = Math.max(next + (burst * PRODUCERS * 1000) / rate, performance.now());
      await sleep(next - performance.now());
    }
  }));
}

export async function main(peer) {
  const [verb, url, file, ...args] = process.argv.slice(3);
  if (verb === "setup") {
    await peer.setup(url);
  } else if (verb === "produce") {
    const [seconds, rate, groups, seed] = args.map(Number);
    await produce(await peer.producer(url), recorder(file), seconds, rate, groups, seed);
  } else if (verb === "work") {
    const [name, slots, failing] = args, note = recorder(file);
    let runs = 0;
    process.stdin.on("end", () => process.exit(0)).resume();
    await peer.work(url, Number(slots), async ({ job }) => {
      const its = { job, attempt: ++runs, process: name };
      note({ event: "start", ...its, at: now() });
      await sleep(10 + Math.random() * 190);
      const fails = Math.random() < Number(failing);
      note({ event: "end", ...its, at: now(), outcome: fails ? "retry" : "succeeded" });
      if (fails) throw new Error("the handler failed");
    });
    console.log("READY");
    await new Promise(() => {});
  } else {
    throw new Error("setup | produce | work, with their arguments");
  }
  process.exit(0);
}
