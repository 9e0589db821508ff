// graphile-worker: a group is a named queue. Variants: `default`, and `local` with its local queue.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { ATTEMPTS, main } from "./kit.mjs";

const logger = new Logger(() => (level, text) => { if (level === "error") console.error(text); });
const local = process.argv[2] === "local" ? { localQueue: { size: 50 } } : {};

await main({
  async setup(url) {
    const utils = await makeWorkerUtils({ connectionString: url, logger });
    await utils.migrate();
    await utils.release();
  },
  async producer(url) {
    const pgPool = new pg.Pool({ connectionString: url, max: 4 });
    pgPool.on("error", (error) => console.error(String(error)));
    const utils = await makeWorkerUtils({ pgPool, logger });
    return (job) => utils.addJob("job", job, { queueName: job.group, maxAttempts: ATTEMPTS });
  },
  async work(url, slots, handler) {
    const worker = { connectionString: url, concurrentJobs: slots, maxPoolSize: slots + 2, ...local };
    const runner = await run({ preset: { worker }, logger, noHandleSignals: true, taskList: { job: handler } });
    // It ends when it cannot go on; a supervisor starts it anew.
    runner.promise.then(() => process.exit(1), (error) => { console.error(error); process.exit(1); });
  },
});
