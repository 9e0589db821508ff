//! Data of any size that is in the table: a claim leaves large data out, and the job's own attempt
//! reads it.

use std::time::Duration;

use seriatim::{
    ActiveJob, Bytes, FailureKind, Hold, JobError, JobHandler, JobStatus, NewJob, RetryPolicy,
    async_trait,
};

use crate::support::{
    AwakeInstant, Log, by_hand, database, drained, ended, handler, job, job_of, processor, queue,
    sample, serve, started,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_secs(30))];

/// Takes down the group and the size of what it got.
struct Measures(Log);

#[async_trait]
impl JobHandler for Measures {
    type Data = Bytes;
    type Output = usize;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, data: Bytes) -> Result<usize, JobError> {
        self.0.add(format!("{} {}", job.group().unwrap_or_default(), data.len()));
        Ok(data.len())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_job_delays_no_other_group() {
    const SIZE: i32 = 64 << 20;
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        let of = |group: String| NewJob::bytes("q", "text/plain", *b"1").group(group);
        let large = seriatim::enqueue(pool, of(String::from("large"))).await.unwrap().id();
        // An enqueue would refuse it. A copy of the table would not.
        let grow =
            format!("update seriatim.job set payload = convert_to(repeat('a', {SIZE}), 'UTF8')");
        by_hand(pool, grow).await;
        let small = (0..20).map(|n| of(format!("small{n}")));
        seriatim::enqueue_many(pool, small).await.unwrap();
        let begun = AwakeInstant::now();
        let options = queue("q").concurrency(4).hold(hold);
        let _running =
            started(processor(&database, 10).await.queue(options, Measures(log.clone()))).await;
        log.wait_for(20).await;
        let waited = begun.elapsed();
        println!("{hold:?}: 20 jobs beside {SIZE} bytes after {waited:.2?}");
        assert!(waited < Duration::from_secs(5), "{hold:?}: {waited:?}");
        drained(pool, "q").await;
        assert!(log.entries().contains(&format!("large {SIZE}")), "{hold:?}");
        assert_eq!(job(pool, large).await.attempts, 1, "{hold:?}");
    }
}

/// The server refuses to read it, as it does with data that has 1 GB as text.
#[tokio::test(flavor = "multi_thread")]
async fn data_that_cannot_be_read_fails_its_own_job() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let id = seriatim::enqueue(pool, job_of("q", "large", 1)).await.unwrap().id();
        let broken = r"create cast (bytea as jsonb) without function;
            update seriatim.job set data = '\x00000000'::bytea::jsonb";
        by_hand(pool, broken).await;
        let small = (0..20).map(|n| job_of("q", &format!("small{n}"), n));
        let small = seriatim::enqueue_many(pool, small).await.unwrap();
        let retry = RetryPolicy::new(2).base(Duration::ZERO);
        let options = queue("q").concurrency(4).hold(hold).retry(retry);
        let _running = serve(&database, 10, options, handler(async |_, data| Ok(data))).await;
        for small in small {
            assert_eq!(ended(pool, small.id()).await.status, JobStatus::Succeeded, "{hold:?}");
        }
        let wait = "select status = 'failed' from seriatim.job order by id limit 1";
        crate::support::eventually(pool, wait, true).await;
        // The client could not read it either.
        by_hand(pool, "update seriatim.job set data = '1' where status = 'failed'").await;
        let failed = job(pool, id).await;
        let error = failed.error.unwrap();
        assert_eq!(error.kind, FailureKind::Data, "{hold:?}");
        assert!(error.message.contains("the data of the job cannot be read"), "{error:?}");
        assert!(failed.attempts > 0, "{hold:?}: {}", failed.attempts);
    }
}
