//! The pages, as HTML.

mod move_tasks;
mod view;

use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, OriginalUri, Query, State};
use axum::http::Uri;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use chrono::Utc;
use serde::Deserialize;

use crate::action::{Button, Buttons};
use crate::app::App;
use crate::assets;
use crate::config::{Access, Identity};
use crate::data::{self, LaneFilter, LetterFilter, Shared, shown};
use crate::error::{WebError, wrong_method};
use crate::pages::move_tasks::Moves;
use crate::pages::view::{
    AttemptView, JobLine, LetterRow, NodeRow, OperationRow, PauseView, QueueRow, RowView, When,
    encode, field, queue_url,
};
use crate::timeline::{Timeline, timeline};

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/", get(queues))
        .route("/queue", get(queue))
        .route("/lane", get(lane))
        .route("/job", get(job))
        .route("/stopped", get(stopped))
        .route("/parked", get(parked))
        .route("/failed", get(failed))
        .route("/find", get(find))
        .route("/nodes", get(nodes))
        .route("/log", get(log))
        .method_not_allowed_fallback(wrong_method)
}

/// The frame of all pages.
#[derive(Template)]
#[template(path = "layout.html")]
struct Layout<'a> {
    title: &'a str,
    /// The prefix of relative addresses.
    base: &'a str,
    style: String,
    script: String,
    main: &'a str,
    took_ms: u128,
    user: &'a str,
    role: &'a str,
    find: String,
}

/// Shows an error that came before or instead of a page.
pub(crate) fn error_page(message: &str) -> String {
    #[derive(Template)]
    #[template(path = "error.html")]
    struct ErrorPage<'a> {
        message: &'a str,
    }
    ErrorPage { message }.render().unwrap_or_else(|_| String::from("error"))
}

struct PageError(WebError);

impl<E: Into<WebError>> From<E> for PageError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        self.0.into_page()
    }
}

type Shown = Result<Response, PageError>;
type Asked<T> = Result<Query<T>, QueryRejection>;

/// A request for a page.
struct Visit<'a> {
    app: &'a App,
    identity: &'a Identity,
    uri: &'a Uri,
    find: &'a str,
}

impl Visit<'_> {
    /// Returns what goes before relative addresses. It is empty, but for a mount point that was
    /// asked for without its slash.
    fn base(&self) -> String {
        let path = self.uri.path();
        match path.rsplit_once('/') {
            Some((_, last)) if !last.is_empty() && !is_page(last) => format!("{last}/"),
            _ => String::new(),
        }
    }

    async fn show(
        &self,
        render: impl AsyncFnOnce() -> Result<(String, String), WebError>,
    ) -> Shown {
        let access = self.identity.access;
        let rendered = self.app.rendered(self.uri.to_string(), access, render).await?;
        let base = self.base();
        let layout = Layout {
            title: &rendered.title,
            style: assets::style_path(),
            script: assets::script_path(),
            base: &base,
            main: &rendered.main,
            took_ms: rendered.took.as_millis(),
            user: &self.identity.name,
            role: access.as_str(),
            find: field(self.find),
        };
        Ok(Html(layout.render()?).into_response())
    }
}

fn is_page(name: &str) -> bool {
    ["queue", "lane", "job", "stopped", "parked", "failed", "find", "nodes", "log"].contains(&name)
}

async fn queues(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
) -> Shown {
    #[derive(Template)]
    #[template(path = "queues.html")]
    struct Queues {
        base: String,
        queues: Vec<QueueRow>,
    }
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let queues = data::queues(&app).await?;
            let row = |queue| QueueRow::new(&app, identity.access, queue);
            let queues = queues.iter().cloned().map(row).collect();
            let main = Queues { base: visit.base(), queues }.render()?;
            Ok((String::from("Queues"), main))
        })
        .await
}

struct Choice {
    word: &'static str,
    label: &'static str,
    chosen: bool,
}

/// The next jobs of a lane that its timeline draws.
const DRAWN: usize = 9;

const STATES: [(&str, &str); 8] = [
    ("", "any state"),
    ("running", "running"),
    ("lapsed", "lapsed"),
    ("ready", "ready"),
    ("resting", "resting"),
    ("halted", "halted"),
    ("paused", "paused"),
    ("parked", "parked"),
];
const SORTS: [(&str, &str); 3] =
    [("name", "by name"), ("wait", "longest wait first"), ("depth", "deepest first")];

fn choices(all: &[(&'static str, &'static str)], chosen: &str) -> Vec<Choice> {
    let choice = |&(word, label)| Choice { word, label, chosen: word == chosen };
    all.iter().map(choice).collect()
}

async fn queue(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
    filter: Asked<LaneFilter>,
) -> Shown {
    #[derive(Template)]
    #[template(path = "queue.html")]
    struct Queue {
        about: QueueRow,
        rows: Vec<RowView>,
        moves: Moves,
        states: Vec<Choice>,
        sorts: Vec<Choice>,
        find: String,
        next: Option<String>,
        or_more: bool,
        filtered: bool,
    }
    let Query(filter) = filter?;
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let overview = data::queue(&app, &filter.name).await?.ok_or_else(|| {
                WebError::NotFound(format!(
                    "There is no queue {:?}: nothing was enqueued to it yet, or all is gone.",
                    filter.name
                ))
            })?;
            let page = data::groups(&app, &filter).await?;
            let next = page.next.map(|next| {
                format!(
                    "queue?name={}&state={}&sort={}&find={}&after={}",
                    encode(&filter.name),
                    encode(&filter.state),
                    encode(&filter.sort),
                    encode(&filter.find),
                    encode(&next)
                )
            });
            let rows = data::rows(&app, &filter.name, page.groups).await?;
            let row = |row| RowView::new(&app, identity.access, row, false);
            let main = Queue {
                moves: Moves::read(&app, identity.access, &overview).await?,
                about: QueueRow::new(&app, identity.access, overview)
                    .with(Buttons::new(&app, identity.access).purge_everything(&filter.name)),
                rows: rows.iter().map(row).collect(),
                states: choices(&STATES, &filter.state),
                sorts: choices(&SORTS, &filter.sort),
                filtered: !filter.state.is_empty() || !filter.find.is_empty(),
                find: field(&filter.find),
                next,
                or_more: page.or_more,
            };
            Ok((format!("Queue {}", shown(&filter.name)), main.render()?))
        })
        .await
}

#[derive(Deserialize)]
struct OfGroup {
    queue: String,
    group: String,
}

async fn lane(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
    of: Asked<OfGroup>,
) -> Shown {
    #[derive(Template)]
    #[template(path = "lane.html")]
    struct LanePage {
        queue: String,
        queue_url: String,
        letters_url: String,
        group: String,
        state: &'static str,
        sentence: String,
        queue_paused: bool,
        unserved: Option<When>,
        paused: Option<PauseView>,
        halt_ends: Option<When>,
        timeline: Timeline,
        jobs: Vec<JobLine>,
        more: String,
        recent: Vec<JobLine>,
        parked: String,
        buttons: Vec<Button>,
    }
    let Query(of) = of?;
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let lane = data::lane(&app, &of.queue, &of.group).await?;
            let in_order = lane.halted_by.iter().chain(&lane.jobs);
            let parked = lane.overview.as_ref().filter(|group| group.parked.count > 0);
            let main = LanePage {
                queue: shown(&lane.queue),
                queue_url: queue_url(&lane.queue),
                letters_url: format!(
                    "failed?queue={}&group={}",
                    encode(&lane.queue),
                    encode(&lane.group)
                ),
                group: shown(&lane.group),
                state: lane.state.as_str(),
                sentence: shown(&lane.sentence),
                queue_paused: lane.queue_paused,
                unserved: lane.queue_unserved_since.map(When::new),
                paused: lane.overview.as_ref().and_then(PauseView::of_group),
                halt_ends: lane
                    .overview
                    .as_ref()
                    .and_then(|group| group.halted_until)
                    .map(When::new),
                timeline: timeline(
                    lane.recent.iter().chain(in_order.clone().take(DRAWN)),
                    Utc::now(),
                ),
                recent: lane.recent.iter().rev().map(JobLine::new).collect(),
                jobs: in_order.map(JobLine::new).collect(),
                more: lane.more(),
                parked: parked.map(|group| group.parked.to_string()).unwrap_or_default(),
                buttons: Buttons::new(&app, identity.access).lane(&lane).made(),
            };
            Ok((format!("Lane {}", shown(&lane.group)), main.render()?))
        })
        .await
}

#[derive(Deserialize)]
struct OfJob {
    id: i64,
}

async fn job(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
    of: Asked<OfJob>,
) -> Shown {
    #[derive(Template)]
    #[template(path = "job.html")]
    struct JobPage {
        job: JobLine,
        sentence: String,
        queue: String,
        queue_url: String,
        failed_in: Option<(String, String)>,
        lane: Option<(String, String)>,
        reference: Option<String>,
        priority: u8,
        created: When,
        due: When,
        started: Option<When>,
        finished: Option<When>,
        expires: Option<When>,
        error: Option<(String, Vec<String>)>,
        attempts: Vec<AttemptView>,
        timeline: Timeline,
        show_data: bool,
        data: String,
        result: Option<String>,
        payload: Option<String>,
        buttons: Vec<Button>,
    }
    let Query(of) = of?;
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let data::JobDetail { job, sentence, explanation, halts_group } =
                data::job(&app, of.id).await?;
            let parked_with_it = explanation.is_some_and(|explanation| {
                matches!(explanation.reason, seriatim::Reason::Ended { parked: true, .. })
            });
            let pretty = |json| serde_json::to_string_pretty(json).unwrap_or_default();
            let error = job.error.as_ref().map(|error| {
                (shown(&error.message), error.chain.iter().map(|text| shown(text)).collect())
            });
            let main = JobPage {
                sentence: shown(&sentence),
                queue: shown(&job.queue),
                queue_url: queue_url(&job.queue),
                failed_in: job
                    .moved_from
                    .as_ref()
                    .map(|queue| (format!("failed?queue={}", encode(queue)), shown(queue))),
                lane: job
                    .group
                    .as_ref()
                    .map(|group| (view::lane_url(&job.queue, group), shown(group))),
                reference: job.reference.as_deref().map(shown),
                priority: job.priority,
                created: When::new(job.created_at),
                due: When::new(job.run_at),
                started: job.last_started_at.map(When::new),
                finished: job.finished_at.map(When::new),
                expires: job.expires_at.map(When::new),
                error,
                attempts: job.history.iter().map(AttemptView::new).collect(),
                timeline: timeline([&job], Utc::now()),
                show_data: app.config.show_data,
                data: job.data.as_ref().map(pretty).unwrap_or_default(),
                result: job.result.as_ref().map(pretty),
                payload: job.payload_bytes.map(|bytes| {
                    let kind = job.content_type.as_deref().unwrap_or("no content type");
                    format!("{bytes} raw bytes ({})", shown(kind))
                }),
                buttons: Buttons::new(&app, identity.access)
                    .job(&job, parked_with_it, halts_group)
                    .made(),
                job: JobLine::new(&job),
            };
            Ok((format!("Job {}", of.id), main.render()?))
        })
        .await
}

#[derive(Template)]
#[template(path = "stopped.html")]
struct StoppedPage {
    heading: &'static str,
    lead: &'static str,
    nothing: &'static str,
    queues: Vec<QueueView>,
    orphaned: Vec<NodeRow>,
    rows: Vec<RowView>,
    or_more: bool,
}

/// A queue that stands as a whole.
struct QueueView {
    queue: String,
    url: String,
    state: &'static str,
    since: When,
    why: String,
    buttons: Vec<Button>,
}

impl StoppedPage {
    fn new(app: &App, access: Access, stopped: data::Stopped) -> Self {
        let unserved = stopped.unserved.into_iter().map(|unserved| QueueView {
            url: queue_url(&unserved.queue),
            state: "unserved",
            since: When::new(unserved.since),
            why: String::from(
                "No living processor or receiver serves this queue, and its work is due. Start the program \
                 that serves it, or compare the name where jobs are enqueued: the nodes say which \
                 queues they serve.",
            ),
            buttons: Vec::new(),
            queue: shown(&unserved.queue),
        });
        let paused = stopped.queues.into_iter().map(|paused| QueueView {
            url: queue_url(&paused.queue),
            state: "paused",
            since: When::new(paused.since),
            why: match (paused.reason.as_deref(), paused.until) {
                (None | Some(""), None) => String::from("No reason was given."),
                (reason, until) => {
                    let ends = |at| format!(" It ends by itself {}.", When::new(at).words);
                    let ends = until.map(ends).unwrap_or_default();
                    format!("{}{ends}", reason.map(shown).unwrap_or_default())
                }
            },
            buttons: Buttons::new(app, access).queue(&paused.queue, true, false, false).made(),
            queue: shown(&paused.queue),
        });
        let row = |row| RowView::new(app, access, row, true);
        let node = |node| NodeRow::new(app, access, node);
        Self {
            heading: "Stopped",
            lead: "Queues that no processor or receiver serves, jobs whose worker is gone, and what is halted, \
                   paused or parked, the oldest first. None of these goes on by itself, unless it \
                   says so.",
            nothing: "Nothing stands.",
            queues: unserved.chain(paused).collect(),
            orphaned: stopped.orphaned.iter().map(node).collect(),
            rows: stopped.groups.iter().map(row).collect(),
            or_more: stopped.or_more,
        }
    }
}

async fn stopped(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
) -> Shown {
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let main = StoppedPage::new(&app, identity.access, data::stopped(&app).await?);
            Ok((String::from("Stopped"), main.render()?))
        })
        .await
}

#[derive(Deserialize)]
struct OfQueue {
    queue: Option<String>,
}

async fn parked(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
    of: Asked<OfQueue>,
) -> Shown {
    let Query(of) = of?;
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let parked = data::parked(&app, of.queue.as_deref()).await?;
            let main = StoppedPage {
                heading: "Parked",
                lead: "Jobs that stepped aside with one that failed. Redrive queues them again, in \
                       their original order; discard gives them up.",
                nothing: "Nothing is parked.",
                ..StoppedPage::new(&app, identity.access, parked)
            };
            Ok((String::from("Parked"), main.render()?))
        })
        .await
}

const WITHIN: [(&str, &str); 4] = [
    ("", "any time"),
    ("hour", "the last hour"),
    ("day", "the last day"),
    ("week", "the last week"),
];

async fn failed(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
    filter: Asked<LetterFilter>,
) -> Shown {
    #[derive(Template)]
    #[template(path = "failed.html")]
    struct FailedPage {
        queue: String,
        group: String,
        name: String,
        error: String,
        about: String,
        within: Vec<Choice>,
        filtered: bool,
        rows: Vec<LetterRow>,
        next: Option<String>,
        buttons: Vec<Button>,
    }
    let Query(filter) = filter?;
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let letters = data::failed(&app, &filter).await?;
            let LetterFilter { queue, group, name, error, within, .. } = &filter;
            let next = letters.next.map(|next| {
                format!(
                    "failed?queue={}&group={}&name={}&error={}&within={}&after={next}",
                    encode(queue),
                    encode(group),
                    encode(name),
                    encode(error),
                    encode(within),
                )
            });
            let buttons = Buttons::new(&app, identity.access).failed(&filter).made();
            let main = FailedPage {
                within: choices(&WITHIN, within),
                filtered: !filter.is_empty(),
                rows: letters.jobs.iter().map(LetterRow::new).collect(),
                queue: field(queue),
                group: field(group),
                name: field(name),
                error: field(error),
                about: filter.about(),
                next,
                buttons,
            };
            Ok((String::from("Dead letters"), main.render()?))
        })
        .await
}

#[derive(Deserialize)]
struct Text {
    #[serde(default)]
    q: String,
}

async fn find(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
    text: Asked<Text>,
) -> Shown {
    #[derive(Template)]
    #[template(path = "find.html")]
    struct FoundPage {
        text: String,
        nothing: bool,
        queues: Vec<(String, String)>,
        groups: Vec<FoundGroup>,
        jobs: Vec<JobLine>,
    }
    struct FoundGroup {
        url: String,
        group: String,
        queue: String,
        state: &'static str,
    }
    let Query(Text { q }) = text?;
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: &q };
    visit
        .show(async || {
            let found = data::find(&app, &q).await?;
            let queue = |name: &String| (queue_url(name), shown(name));
            let main = FoundPage {
                text: shown(&q),
                nothing: found.is_empty(),
                queues: found.queues.iter().map(queue).collect(),
                groups: found
                    .groups
                    .iter()
                    .map(|found| FoundGroup {
                        url: view::lane_url(&found.queue, &found.group),
                        group: shown(&found.group),
                        queue: shown(&found.queue),
                        state: found.state,
                    })
                    .collect(),
                jobs: found.jobs.iter().map(JobLine::new).collect(),
            };
            Ok((format!("Find {}", shown(&q)), main.render()?))
        })
        .await
}

async fn nodes(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
) -> Shown {
    #[derive(Template)]
    #[template(path = "nodes.html")]
    struct Nodes {
        nodes: Vec<NodeRow>,
        overridden: Vec<String>,
    }
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let nodes = data::nodes(&app).await?;
            let row = |node| NodeRow::new(&app, identity.access, node);
            let overridden = data::overridden(&app).await?;
            let overridden = overridden.iter().map(|sentence| shown(sentence)).collect();
            let main = Nodes { nodes: nodes.iter().map(row).collect(), overridden };
            Ok((String::from("Nodes"), main.render()?))
        })
        .await
}

#[derive(Deserialize)]
struct Before {
    before: Option<i64>,
}

async fn log(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    OriginalUri(uri): OriginalUri,
    of: Asked<Before>,
) -> Shown {
    #[derive(Template)]
    #[template(path = "log.html")]
    struct Log {
        operations: Vec<OperationRow>,
        next: Option<i64>,
    }
    let Query(of) = of?;
    let visit = Visit { app: &app, identity: &identity, uri: &uri, find: "" };
    visit
        .show(async || {
            let operations = data::operations(&app, of.before).await?;
            let full = operations.len() >= usize::try_from(data::OPERATIONS).unwrap_or(usize::MAX);
            let main = Log {
                next: operations.last().filter(|_| full).map(|last| last.id),
                operations: operations.iter().map(OperationRow::new).collect(),
            };
            Ok((String::from("Log"), main.render()?))
        })
        .await
}
