//! Runs jobs by their kinds.

use std::iter;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::value::{RawValue, to_raw_value};

use crate::attempt::active_job::ActiveJob;
use crate::attempt::handler::{JobHandler, undecodable};
use crate::attempt::kinds::{KindHandler, Kinds};
use crate::job::bytes::from_json;
use crate::job::job::FailureKind;
use crate::job::job_error::{JobError, storable};
use crate::job::kind::JobKind;
use crate::job::retry::RetryPolicy;

impl Kinds {
    /// Returns an empty set of handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the handler of a kind. If two handlers have the same kind, or a kind of another queue,
    /// [`build`](crate::ProcessorBuilder::build) returns an error.
    pub fn on<H: JobHandler<Data: JobKind>>(mut self, handler: H) -> Self {
        let handler: Arc<dyn KindHandler> = Arc::new(handler);
        for name in iter::once(&H::Data::NAME).chain(H::Data::ALIASES) {
            let earlier = self.handlers.insert(name, Arc::clone(&handler));
            if earlier.is_some_and(|earlier| !Arc::ptr_eq(&earlier, &handler)) {
                self.twice.push(name);
            }
        }
        self
    }

    fn unknown(&self, job: &ActiveJob) -> JobError {
        let known = self.handlers.keys().map(|kind| format!("{kind:?}")).collect::<Vec<_>>();
        let kind = match job.name() {
            Some(kind) => format!("the kind {kind:?}"),
            None => String::from("jobs without a kind (NewJob::name)"),
        };
        let message = format!(
            "no handler for {kind} in this process ({}), which has {}: a process with a handler for it runs the job",
            job.context.process(),
            known.join(", ")
        );
        JobError::broken(FailureKind::UnknownKind, message)
    }
}

#[async_trait]
impl JobHandler for Kinds {
    type Data = Box<RawValue>;
    type Output = Box<RawValue>;
    type Error = JobError;

    async fn handle(
        &self,
        job: &mut ActiveJob,
        data: Box<RawValue>,
    ) -> Result<Box<RawValue>, JobError> {
        match job.name().and_then(|kind| self.handlers.get(kind)) {
            Some(handler) => handler.run(job, &data).await,
            None => Err(self.unknown(job)),
        }
    }

    fn kinds(&self) -> Option<&Kinds> {
        Some(self)
    }
}

#[async_trait]
impl<H: JobHandler<Data: JobKind>> KindHandler for H {
    async fn run(&self, job: &mut ActiveJob, data: &RawValue) -> Result<Box<RawValue>, JobError> {
        let data = from_json(data.get()).map_err(|error| undecodable(job, &error))?;
        let output = self.handle(job, data).await.map_err(Into::into)?;
        if job.again.is_some() {
            // The run is no success yet, and its output is not stored.
            return Ok(RawValue::NULL.to_owned());
        }
        to_raw_value(&output)
            .map_err(|error| JobError::broken(FailureKind::Output, storable(&error)))
    }

    fn queue(&self) -> &'static str {
        H::Data::QUEUE
    }

    fn retry(&self) -> Option<RetryPolicy> {
        H::Data::retry()
    }
}
