//! A job as its producer describes it, and the checks before any SQL.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Datelike, Utc};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::job::bytes::JobData;
use crate::job::error::EnqueueError;
use crate::job::headers::{self, Headers};
use crate::job::json::{DEPTH_LIMIT, depth, has_nul};
use crate::job::name;
use crate::job::retry::MAX_DELAY;
use crate::job::unique::{Unique, UniqueMode};

/// A job to be enqueued: `NewJob::new("postings", &data).group("account-42")`.
///
/// Nothing is checked until [`enqueue`](crate::enqueue), which names what is wrong.
///
/// ```
/// # use std::time::Duration;
/// use seriatim::NewJob;
///
/// #[derive(serde::Serialize)]
/// struct Posting { account: u32, cents: i64 }
///
/// let job = NewJob::new("postings", &Posting { account: 42, cents: 1_500 })
///     .group("account-42")
///     .max_attempts(5)
///     .timeout(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
#[must_use = "a NewJob does nothing until it is enqueued"]
pub struct NewJob {
    queue: String,
    group: Option<String>,
    limit_key: Option<String>,
    content: Content,
    start: Start,
    end: Expiry,
    max_attempts: Option<u32>,
    timeout: Option<Duration>,
    lease: Option<Duration>,
    name: Option<String>,
    reference: Option<String>,
    headers: Headers,
    attributes: Attributes,
    priority: u8,
    dedup: Dedup,
    batch: Option<i64>,
}

/// The data of a new job.
#[derive(Clone)]
enum Content {
    Json(Result<String, Arc<serde_json::Error>>),
    Bytes { content_type: String, bytes: Vec<u8> },
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(Ok(data)) => f.debug_struct("Json").field("length", &data.len()).finish(),
            Self::Json(Err(error)) => f.debug_tuple("Json").field(error).finish(),
            Self::Bytes { content_type, bytes } => f
                .debug_struct("Bytes")
                .field("content_type", content_type)
                .field("length", &bytes.len())
                .finish(),
        }
    }
}

/// Attributes; their `Debug` leaves them out, as that of a job does its data.
#[derive(Clone)]
struct Attributes(Map<String, Value>);

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attributes").field("length", &self.0.len()).finish()
    }
}

/// When a job may first run.
#[derive(Debug, Clone, Copy)]
enum Start {
    Unsaid,
    After(Duration),
    At(DateTime<Utc>),
}

/// When a job may no longer begin.
#[derive(Debug, Clone, Copy)]
enum Expiry {
    Never,
    After(Duration),
    At(DateTime<Utc>),
}

/// A time of a job: so long after its enqueue, or a moment.
type JobTime = (Option<Duration>, Option<DateTime<Utc>>);

/// Makes the error for a value that is out of its range, of the field, the value and the range.
type OutOfRange<'a> = &'a dyn Fn(&'static str, String, &'static str) -> EnqueueError;

impl Start {
    fn check(self, out_of_range: OutOfRange<'_>) -> Result<JobTime, EnqueueError> {
        match self {
            Self::Unsaid => Ok((None, None)),
            Self::After(delay) if delay > MAX_DELAY => {
                Err(out_of_range("delay", format!("{delay:?}"), "at most 100 years"))
            }
            Self::After(delay) => Ok((Some(delay), None)),
            Self::At(time) if !is_meant(time) => {
                Err(out_of_range("run_at", time.to_string(), YEARS))
            }
            Self::At(time) => Ok((None, Some(time))),
        }
    }
}

impl Expiry {
    fn check(self, out_of_range: OutOfRange<'_>) -> Result<JobTime, EnqueueError> {
        match self {
            Self::Never => Ok((None, None)),
            Self::After(time) if !(MS..=MAX_DELAY).contains(&time) => {
                Err(out_of_range("time_to_live", format!("{time:?}"), "1 ms to 100 years"))
            }
            Self::After(time) => Ok((Some(time), None)),
            Self::At(time) if !is_meant(time) => {
                Err(out_of_range("expires_at", time.to_string(), YEARS))
            }
            Self::At(time) => Ok((None, Some(time))),
        }
    }
}

/// How a duplicate of a job is recognized.
#[derive(Debug, Clone)]
enum Dedup {
    /// As the queue's settings say.
    Unsaid,
    Id(String),
    Content,
    Key(Unique),
}

impl Dedup {
    /// Returns the id, if the producer gave one, whether the content is the id, and the unique key.
    fn stored(self) -> (Option<String>, bool, Option<Unique>) {
        match self {
            Self::Unsaid => (None, false, None),
            Self::Id(id) => (Some(id), false, None),
            Self::Content => (None, true, None),
            Self::Key(unique) => (None, false, Some(unique)),
        }
    }
}

/// Completes a job before it is checked.
pub(crate) type EnqueueLayer = Arc<dyn Fn(&mut NewJob) + Send + Sync>;

/// Bounds the data of a job by default, and always in the SQL functions and in what is stored to be
/// enqueued later. Also the result of an ack.
pub(crate) const DATA_LIMIT: usize = 1024 * 1024;
/// The largest limit of a client, and the most data of one call: PostgreSQL takes and gives no
/// value of 1 GiB, and writes a byte in up to four.
pub(crate) const DATA_MOST: usize = 256 * 1024 * 1024;
/// Bounds the attributes of a job as JSON: those of an SQS message, written in base64, fit.
pub(crate) const ATTRIBUTES_LIMIT: usize = 2 * DATA_LIMIT;

/// The settings of a client for its enqueues.
#[derive(Clone)]
pub(crate) struct EnqueueSettings {
    /// Bounds the data of a job, in bytes: at most [`DATA_MOST`].
    pub(crate) data_limit: usize,
    /// Whether idle workers are woken.
    pub(crate) notify: bool,
    /// Called with each job, in their order.
    pub(crate) layers: Vec<EnqueueLayer>,
}

impl fmt::Debug for EnqueueSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnqueueSettings")
            .field("data_limit", &self.data_limit)
            .field("notify", &self.notify)
            .field("layers", &self.layers.len())
            .finish()
    }
}

impl NewJob {
    /// The highest priority.
    pub const TOP_PRIORITY: u8 = 9;

    /// Returns a job of `queue` with `data` serialized as JSON, without a group, due at once. A
    /// queue exists by its first job; its name has 1 to 200 characters.
    pub fn new(queue: impl Into<String>, data: &(impl Serialize + ?Sized)) -> Self {
        Self::with(queue.into(), Content::Json(serde_json::to_string(data).map_err(Arc::new)))
    }

    /// Returns a job of `queue` with raw bytes instead of JSON: `NewJob::bytes("scans",
    /// "image/png", png)`. Its handler takes them as [`Bytes`](crate::Bytes).
    ///
    /// The content type names their format, in 1 to 200 characters. Only the handler reads it.
    pub fn bytes(
        queue: impl Into<String>,
        content_type: impl Into<String>,
        bytes: impl Into<Vec<u8>>,
    ) -> Self {
        let content = Content::Bytes { content_type: content_type.into(), bytes: bytes.into() };
        Self::with(queue.into(), content)
    }

    fn with(queue: String, content: Content) -> Self {
        Self {
            queue,
            group: None,
            limit_key: None,
            content,
            start: Start::Unsaid,
            end: Expiry::Never,
            max_attempts: None,
            timeout: None,
            lease: None,
            name: None,
            reference: None,
            headers: Headers::new(),
            attributes: Attributes(Map::new()),
            priority: 0,
            dedup: Dedup::Unsaid,
            batch: None,
        }
    }

    /// Sets the group: its jobs run one at a time, in the order of their enqueues. 1 to 400
    /// characters.
    ///
    /// A job without a group runs beside any other, oldest first.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets the limit key, such as a tenant: at most
    /// [`QueueSettings::limit_per_key`](crate::admin::QueueSettings::limit_per_key) groups whose
    /// job has it run at once, over the whole fleet. 1 to 400 characters; default none. The job
    /// needs a group: the group is its order, the key its concurrency. Without a limit of its queue
    /// the key does nothing.
    pub fn limit_key(mut self, key: impl Into<String>) -> Self {
        self.limit_key = Some(key.into());
        self
    }

    /// Delays the job by this much time after the enqueue, by the database's clock. Default: the
    /// queue's delay ([`QueueSettings::delay`](crate::admin::QueueSettings::delay)), which is none
    /// unless configured.
    ///
    /// A delayed job keeps its place: later jobs of its group wait for it. Replaces
    /// [`run_at`](Self::run_at).
    pub fn delay(mut self, delay: Duration) -> Self {
        self.start = Start::After(delay);
        self
    }

    /// Delays the job until this time (in the years 1 to 9999), by the database's clock. Replaces
    /// [`delay`](Self::delay).
    pub fn run_at(mut self, time: DateTime<Utc>) -> Self {
        self.start = Start::At(time);
        self
    }

    /// Limits the attempts to this many, 1 or more, instead of the queue's
    /// [`RetryPolicy`](crate::RetryPolicy).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets how long the handler may run, instead of the queue's
    /// [`timeout`](crate::QueueOptions::timeout). 1 ms to 100 years, in whole milliseconds. It does
    /// not hold for jobs that are received by hand.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets the lease of this job's claims, instead of the queue's, if the handler's hold is a
    /// lease. 1 s to 1 day, in whole milliseconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Names the kind of the job, for operators and for handlers that run several kinds
    /// ([`ActiveJob::name`](crate::ActiveJob::name)). 1 to 200 characters; default none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the producer's own id, to find the job by
    /// ([`Client::jobs_by_reference`](crate::Client::jobs_by_reference)). 1 to 400 characters;
    /// default none. Any number of jobs may have the same.
    pub fn reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// Adds a header: what travels with the job beside its data, such as the context of a trace
    /// ([`ActiveJob::headers`](crate::ActiveJob::headers)). The name has 1 to 200 characters; all
    /// headers together have 4 KiB at most as JSON. A second value of a name replaces the first.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Adds a header, unless the job has one of this name: what the producer set stays. For
    /// [enqueue layers](crate::Client::enqueue_layer); the limits are those of
    /// [`header`](Self::header).
    pub fn header_if_none(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.headers.entry(name.into()).or_insert_with(|| value.into());
    }

    /// Sets the attributes that [SQS clients](crate::receive::Received::attributes) see, as SQS
    /// spells them: `{"color": {"DataType": "String", "StringValue": "red"}}`. Default none.
    pub fn attributes(mut self, attributes: Map<String, Value>) -> Self {
        self.attributes = Attributes(attributes);
        self
    }

    /// Returns the headers that were set so far, by name.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    /// Returns the queue that the job is for.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Returns the group, if one was set.
    pub fn group_id(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// Sets the priority, 0 (the default) to 9. With each step the job ages 10 s ahead of other
    /// groups, and of other jobs without a group. So a low priority is late, and never starves.
    /// Inside a group it does not change the order.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the time (in the years 1 to 9999), by the database's clock, after which the job does
    /// not begin. Default: none. Replaces [`time_to_live`](Self::time_to_live).
    ///
    /// A job that has not begun by then ends as `failed`, with
    /// [`FailureKind::Expired`](crate::FailureKind::Expired), when its turn comes; so does one that
    /// waits for a retry. Its group goes on: an expiry neither halts nor parks it.
    pub fn expires_at(mut self, time: DateTime<Utc>) -> Self {
        self.end = Expiry::At(time);
        self
    }

    /// Sets the time after the enqueue, by the database's clock, after which the job does not
    /// begin: 1 ms to 100 years. Default: none. Replaces [`expires_at`](Self::expires_at).
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.end = Expiry::After(time);
        self
    }

    /// Enqueues the job only if no job with this id was enqueued to the queue within the window.
    /// The window is 5 minutes, unless
    /// [`QueueSettings::dedup_window`](crate::admin::QueueSettings::dedup_window) says otherwise. 1
    /// to 128 characters; default none. Replaces [`dedup_by_content`](Self::dedup_by_content).
    ///
    /// The window counts from the first enqueue, also if that job has ended or been deleted. While
    /// another transaction with the same id is open, an enqueue waits for its end; with other ids,
    /// and without one, it never waits. A transaction at REPEATABLE READ or SERIALIZABLE fails with
    /// 40001 if the id was committed after its snapshot: retry it. Transactions that enqueue the
    /// same ids in opposite orders can deadlock; one statement sorts its ids.
    pub fn dedup_id(mut self, id: impl Into<String>) -> Self {
        self.dedup = Dedup::Id(id.into());
        self
    }

    /// As [`dedup_id`](Self::dedup_id), with the SHA-256 of the data as the id: of the raw bytes,
    /// or of the JSON as `jsonb` writes it. So neither the order of keys nor white space matters.
    /// Replaces `dedup_id`.
    ///
    /// Default: what
    /// [`QueueSettings::dedup_by_content`](crate::admin::QueueSettings::dedup_by_content) says.
    pub fn dedup_by_content(mut self) -> Self {
        self.dedup = Dedup::Content;
        self
    }

    /// Enqueues the job only if no other job has this [unique key](Unique), until that one starts
    /// or ends. The key has 1 to 128 characters; default none. Replaces
    /// [`dedup_id`](Self::dedup_id) and [`dedup_by_content`](Self::dedup_by_content); the queue's
    /// own deduplication by content does not count for the job.
    ///
    /// While another transaction that enqueues with the same key is open, an enqueue waits for its
    /// end; with other keys, and without one, it never waits. If the job that has the key is locked
    /// for a moment, the enqueue looks again for up to 16 ms, and then takes that job as started.
    /// Transactions that enqueue the same keys in opposite orders can deadlock; one statement sorts
    /// its keys. An enqueue with a key needs a transaction at READ COMMITTED: any other cannot see
    /// whether a job has started since.
    pub fn unique(mut self, unique: Unique) -> Self {
        self.dedup = Dedup::Key(unique);
        self
    }

    /// Lets the job join a batch ([`Client::open_batch`](crate::Client::open_batch)) that is not
    /// sealed. Default none. Producers that join the same batch do not wait for each other, nor for
    /// a seal. A [duplicate](crate::Enqueued::Duplicate) joins none.
    ///
    /// The batch cannot end before the transaction of the enqueue does. A transaction at REPEATABLE
    /// READ or SERIALIZABLE fails with 40001 if the batch has ended after its snapshot.
    pub fn batch(mut self, batch: i64) -> Self {
        self.batch = Some(batch);
        self
    }

    /// Checks everything that needs no database. `index` is the job's position in a call for
    /// several.
    pub(crate) fn check(
        self,
        index: Option<usize>,
        data_limit: usize,
    ) -> Result<CheckedJob, EnqueueError> {
        let Self {
            queue,
            group,
            limit_key,
            content,
            start,
            end,
            max_attempts,
            timeout,
            lease,
            name,
            reference,
            headers,
            attributes,
            priority,
            dedup,
            batch,
        } = self;
        let bad_name = |source| EnqueueError::Name { index, source };
        let out_of_range =
            |field, value, range| EnqueueError::OutOfRange { index, field, value, range };
        name::check_queue(&queue).map_err(bad_name)?;
        let (dedup_id, dedup_by_content, unique) = dedup.stored();
        let unique_key = unique.as_ref().map(|unique| unique.key.clone());
        let texts = [
            ("group", &group, name::GROUP_LIMIT),
            ("limit key", &limit_key, name::GROUP_LIMIT),
            ("job", &name, name::JOB_NAME_LIMIT),
            ("reference", &reference, name::REFERENCE_LIMIT),
            ("deduplication id", &dedup_id, name::DEDUP_LIMIT),
            ("unique key", &unique_key, name::DEDUP_LIMIT),
        ];
        for (field, text, limit) in texts {
            let text = text.as_deref();
            text.map_or(Ok(()), |text| name::check(field, text, limit)).map_err(bad_name)?;
        }
        if let (Some(key), None) = (&limit_key, &group) {
            return Err(out_of_range("limit_key", key.clone(), "only of a job with a group"));
        }
        if let (Some(Unique { key, in_group: true, .. }), None) = (&unique, &group) {
            let range = "a key of its group only for a job with a group: call group() as well";
            return Err(out_of_range("unique key", key.clone(), range));
        }
        let headers = check_headers(&headers, index)?;
        let attributes = check_attributes(attributes.0, index)?;
        let content = check_content(content, index, data_limit)?;
        let (delay, run_at) = start.check(&out_of_range)?;
        let (time_to_live, expires_at) = end.check(&out_of_range)?;
        let max_attempts = max_attempts
            .map(|n| match i32::try_from(n) {
                Ok(n) if n > 0 => Ok(n),
                _ => Err(out_of_range("max_attempts", n.to_string(), "1 to 2147483647")),
            })
            .transpose()?;
        let in_ms = |field, given: Option<Duration>, least, most, range| {
            given
                .map(|time| match i64::try_from(time.as_millis()) {
                    Ok(ms) if (least..=most).contains(&time) => Ok(ms),
                    _ => Err(out_of_range(field, format!("{time:?}"), range)),
                })
                .transpose()
        };
        let timeout_ms = in_ms("timeout", timeout, MS, MAX_DELAY, "1 ms to 100 years")?;
        let (second, day) = (Duration::from_secs(1), Duration::from_hours(24));
        let lease_ms = in_ms("lease", lease, second, day, "1 s to 1 day")?;
        if priority > Self::TOP_PRIORITY {
            return Err(out_of_range("priority", priority.to_string(), "0 to 9"));
        }
        Ok(CheckedJob {
            queue,
            group,
            limit_key,
            content,
            delay,
            run_at,
            time_to_live,
            expires_at,
            max_attempts,
            timeout_ms,
            lease_ms,
            name,
            reference,
            headers,
            attributes,
            priority: priority.into(),
            dedup_id,
            dedup_by_content,
            unique,
            batch,
        })
    }
}

const MS: Duration = Duration::from_millis(1);
const YEARS: &str = "in the years 1 to 9999";

/// Returns whether a producer can mean this time. `timestamptz` begins in 4713 BC, and adoption
/// scans from 221 BC on.
fn is_meant(time: DateTime<Utc>) -> bool {
    (1..10_000).contains(&time.year())
}

fn check_content(
    content: Content,
    index: Option<usize>,
    limit: usize,
) -> Result<JobData, EnqueueError> {
    let small_enough = |size| match size {
        size if size > limit => Err(EnqueueError::DataTooLarge { index, size, limit }),
        _ => Ok(()),
    };
    match content {
        Content::Json(data) => {
            let data = data.map_err(|source| EnqueueError::Serialize { index, source })?;
            small_enough(data.len())?;
            if has_nul(&data) {
                return Err(EnqueueError::DataHasNul { index });
            }
            let depth = depth(&data);
            if depth > DEPTH_LIMIT {
                return Err(EnqueueError::DataTooDeep { index, depth, limit: DEPTH_LIMIT });
            }
            Ok(JobData::Json(data))
        }
        Content::Bytes { content_type, bytes } => {
            name::check("content type", &content_type, name::CONTENT_TYPE_LIMIT)
                .map_err(|source| EnqueueError::Name { index, source })?;
            small_enough(bytes.len())?;
            Ok(JobData::Bytes { content_type: Some(content_type), bytes })
        }
    }
}

/// Returns the headers as JSON; `None` if there are none.
fn check_headers(headers: &Headers, index: Option<usize>) -> Result<Option<String>, EnqueueError> {
    if headers.is_empty() {
        return Ok(None);
    }
    for name in headers.keys() {
        name::check("header", name, headers::NAME_LIMIT)
            .map_err(|source| EnqueueError::Name { index, source })?;
    }
    let json = serde_json::to_string(headers)
        .map_err(|source| EnqueueError::Serialize { index, source: Arc::new(source) })?;
    if json.len() > headers::LIMIT || has_nul(&json) {
        let (field, value) = ("headers", format!("{} bytes", json.len()));
        let range = "4096 bytes as JSON at most, without NUL";
        return Err(EnqueueError::OutOfRange { index, field, value, range });
    }
    Ok(Some(json))
}

/// Returns the attributes as JSON; `None` if there are none.
fn check_attributes(
    attributes: Map<String, Value>,
    index: Option<usize>,
) -> Result<Option<String>, EnqueueError> {
    if attributes.is_empty() {
        return Ok(None);
    }
    let json = Value::Object(attributes).to_string();
    if json.len() > ATTRIBUTES_LIMIT {
        let (field, value) = ("attributes", format!("{} bytes", json.len()));
        let range = "2097152 bytes as JSON at most";
        return Err(EnqueueError::OutOfRange { index, field, value, range });
    }
    if has_nul(&json) {
        let (field, value) = ("attributes", String::from("a text with NUL"));
        let range = "without NUL";
        return Err(EnqueueError::OutOfRange { index, field, value, range });
    }
    Ok(Some(json))
}

/// The queue, the group if it is the group's, the text, and whether it counts until its job ends.
pub(crate) type UniqueKey = (String, Option<String>, String, bool);

/// A [`NewJob`] that the database will accept.
#[derive(Debug)]
pub(crate) struct CheckedJob {
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    pub(crate) limit_key: Option<String>,
    pub(crate) content: JobData,
    pub(crate) delay: Option<Duration>,
    pub(crate) run_at: Option<DateTime<Utc>>,
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) expires_at: Option<DateTime<Utc>>,
    pub(crate) max_attempts: Option<i32>,
    pub(crate) timeout_ms: Option<i64>,
    pub(crate) lease_ms: Option<i64>,
    pub(crate) name: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) attributes: Option<String>,
    pub(crate) priority: i16,
    pub(crate) dedup_id: Option<String>,
    pub(crate) dedup_by_content: bool,
    pub(crate) unique: Option<Unique>,
    pub(crate) batch: Option<i64>,
}

impl CheckedJob {
    /// Returns what identifies the job's unique key; `None` if it has none.
    pub(crate) fn key(&self) -> Option<UniqueKey> {
        let Unique { key, mode, in_group } = self.unique.clone()?;
        let group = if in_group { self.group.clone() } else { None };
        Some((self.queue.clone(), group, key, mode == UniqueMode::UntilEnd))
    }

    /// Takes what a later enqueue with the same unique key replaces.
    pub(crate) fn replace_with(&mut self, later: Self) {
        let mode = |job: &Self| job.unique.as_ref().map(|unique| unique.mode);
        let debounces = mode(&later) == Some(UniqueMode::Debounce);
        if !debounces && mode(&later) != Some(UniqueMode::Replace) {
            return;
        }
        let was = replace(self, later);
        if mode(&was) == Some(UniqueMode::Debounce) {
            self.unique = was.unique;
        }
        if !debounces {
            (self.delay, self.run_at) = (was.delay, was.run_at);
        }
        (self.group, self.limit_key) = (was.group, was.limit_key);
        (self.priority, self.batch) = (was.priority, was.batch);
    }

    /// Returns about how many bytes the job has in the statement that inserts it.
    pub(crate) fn size(&self) -> usize {
        let data = match &self.content {
            JobData::Json(text) => text.len(),
            JobData::Bytes { bytes, .. } => bytes.len(),
        };
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let key = self.unique.as_ref().map_or(0, |unique| unique.key.len());
        let texts = [
            &self.group,
            &self.limit_key,
            &self.name,
            &self.reference,
            &self.headers,
            &self.attributes,
            &self.dedup_id,
        ];
        data + key + self.queue.len() + texts.into_iter().map(len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let bad = |job: NewJob| job.check(Some(3), 100).map(|_| ()).map_err(|e| e.to_string());
        let job = || NewJob::new("q", &1);
        assert!(job().group("g").check(None, 100).is_ok());
        assert!(bad(job().max_attempts(0)).is_err_and(|e| e.contains("max_attempts of job 3")));
        assert!(bad(job().timeout(Duration::ZERO)).is_err_and(|e| e.contains("timeout of job 3")));
        assert!(bad(job().delay(Duration::MAX)).is_err_and(|e| e.contains("delay of job 3")));
        assert!(bad(job().run_at(DateTime::<Utc>::MAX_UTC)).is_err_and(|e| e.contains("run_at")));
        assert!(bad(NewJob::new("q", &"x".repeat(100))).is_err_and(|e| e.contains("102 bytes")));
        assert!(bad(NewJob::new("", &1)).is_err());
        let nul = Map::from_iter([(String::from("a"), Value::from("\0"))]);
        assert!(bad(job().attributes(nul)).is_err_and(|e| e.contains("attributes of job 3")));
        let alone = job().limit_key("tenant-7");
        assert!(bad(alone).is_err_and(|e| e.contains("limit_key of job 3")));
        assert!(job().group("g").limit_key("tenant-7").check(None, 100).is_ok());
        assert!(bad(job().priority(10)).is_err_and(|e| e.contains("priority of job 3")));
        assert!(bad(job().lease(MS)).is_err_and(|e| e.contains("lease of job 3")));
        assert!(bad(job().time_to_live(Duration::ZERO)).is_err_and(|e| e.contains("time_to_live")));
        assert!(
            bad(job().expires_at(DateTime::<Utc>::MAX_UTC))
                .is_err_and(|e| e.contains("expires_at"))
        );
    }

    #[test]
    fn data_that_does_not_serialize_is_an_error_of_the_enqueue() {
        let bad = NewJob::new("q", &std::collections::HashMap::from([((1, 2), 3)]));
        assert!(matches!(bad.check(None, 100), Err(EnqueueError::Serialize { index: None, .. })));
    }
}
