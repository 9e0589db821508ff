//! The program of the README: `DATABASE_URL=postgres://… cargo run --example in_order`

use seriatim::{ActiveJob, JobError, JobHandler, NewJob, Processor, QueueOptions, async_trait};

struct Post;

#[async_trait]
impl JobHandler for Post {
    type Data = i64;
    type Output = ();
    type Error = JobError; // `?` makes one of any error, and means retry

    async fn handle(&self, job: &mut ActiveJob, cents: i64) -> Result<(), JobError> {
        println!("{cents:+} cents to {}", job.group().unwrap_or("nobody"));
        Ok(()) // what is written by `job.tx()` commits with the job, or not at all
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = sqlx::PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    seriatim::migrate(&pool).await?;
    for cents in [1_500, -300, 25] {
        seriatim::enqueue(&pool, NewJob::new("postings", &cents).group("ann")).await?;
    }
    let postings = QueueOptions::new("postings").concurrency(4);
    let running = Processor::builder(pool).queue(postings, Post).build()?.start().await?;
    seriatim::shutdown_signal().await?; // Ctrl-C
    running.shutdown(std::time::Duration::from_secs(20)).await;
    Ok(())
}
