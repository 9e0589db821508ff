// pg-boss: a group is the singletonKey in a queue with the policy key_strict_fifo.
import { PgBoss } from "pg-boss";
import { ATTEMPTS, TIMEOUT, main } from "./kit.mjs";

const QUEUE = "fifo";

async function boss(connectionString, max, supervise) {
  const one = new PgBoss({
    connectionString, max, supervise, schedule: false, useListenNotify: true,
    superviseIntervalSeconds: 1, monitorIntervalSeconds: 1,
  });
  one.on("error", (error) => console.error(String(error)));
  await one.start();
  return one;
}

await main({
  async setup(url) {
    const one = await boss(url, 2, false);
    await one.createQueue(QUEUE, {
      policy: "key_strict_fifo", notify: true, expireInSeconds: TIMEOUT,
      retryLimit: ATTEMPTS, retryDelay: 1, retryBackoff: true, retryDelayMax: 60,
    });
    await one.stop({ graceful: false });
  },
  async producer(url) {
    const one = await boss(url, 4, false);
    return async (job) => {
      const id = await one.send(QUEUE, job, { singletonKey: job.group });
      if (id === null) throw new Error("no job was made");
    };
  },
  async work(url, slots, handler) {
    const one = await boss(url, slots + 2, true);
    const options = {
      localConcurrency: slots, batchSize: 1, burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5,
    };
    await one.work(QUEUE, options, async ([job]) => handler(job.data));
  },
});
