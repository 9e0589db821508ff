//! The JSON API: the same reads as the pages, and the actions.

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use seriatim::admin::{Batch, MoveTask, Operation, QueueOverview, StoredSchedule};
use seriatim::explain::ProcessorInfo;
use seriatim::observe::LastHour;

use crate::access::check_change;
use crate::action::{Ask, Effect, act};
use crate::config::Identity;
use crate::data::{
    self, Found, JobDetail, Lane, LaneFilter, LetterFilter, Letters, Shared, Stopped,
};
use crate::error::{ApiError, WebError};
use crate::pages::batches::BatchQuery;
use crate::pages::find::FindQuery;
use crate::pages::frame::Asked;
use crate::pages::lane::LaneQuery;
use crate::pages::log::LogQuery;
use crate::pages::parked::QueueQuery;
use crate::pages::schedules::ScheduleQuery;

/// Bounds the body of a request, in bytes.
const BODY_LIMIT: usize = 64 * 1024;

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/queues", get(queues))
        .route("/hour", get(hour))
        .route("/groups", get(groups))
        .route("/lane", get(lane))
        .route("/jobs/{id}", get(job))
        .route("/explain", get(explain))
        .route("/stopped", get(stopped))
        .route("/parked", get(parked))
        .route("/failed", get(failed))
        .route("/find", get(find))
        .route("/nodes", get(nodes))
        .route("/schedules", get(schedules))
        .route("/batches", get(batches))
        .route("/operations", get(operations))
        .route("/move-tasks", get(move_tasks))
        .route("/actions", post(change))
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
}

type Answer<T> = Result<Json<T>, ApiError>;

async fn queues(State(app): State<Shared>) -> Answer<Vec<QueueOverview>> {
    Ok(Json(data::queues(&app).await?.to_vec()))
}

async fn hour(State(app): State<Shared>, query: Asked<QueueQuery>) -> Answer<LastHour> {
    let queue = query?.0.queue;
    let queues: Vec<_> = queue.iter().map(String::as_str).collect();
    Ok(Json(data::last_hour(&app, &queues).await?))
}

async fn groups(
    State(app): State<Shared>,
    filter: Asked<LaneFilter>,
) -> Answer<seriatim::admin::GroupPage> {
    Ok(Json(data::groups(&app, &filter?.0).await?))
}

async fn lane(State(app): State<Shared>, query: Asked<LaneQuery>) -> Answer<Lane> {
    let Query(LaneQuery { queue, group }) = query?;
    Ok(Json(data::lane(&app, &queue, &group).await?))
}

async fn job(State(app): State<Shared>, id: Result<Path<i64>, PathRejection>) -> Answer<JobDetail> {
    Ok(Json(data::job(&app, id?.0).await?))
}

#[derive(Deserialize)]
struct OfAny {
    job: Option<i64>,
    queue: Option<String>,
    group: Option<String>,
}

#[derive(Serialize)]
struct Explained<T> {
    sentence: String,
    explanation: T,
}

async fn explain(State(app): State<Shared>, of: Asked<OfAny>) -> Result<Response, ApiError> {
    match of?.0 {
        OfAny { job: Some(id), .. } => {
            let JobDetail { sentence, explanation, .. } = data::job(&app, id).await?;
            Ok(Json(Explained { sentence, explanation }).into_response())
        }
        OfAny { queue: Some(queue), group: Some(group), .. } => {
            let explanation = app.client.explain_group(&app.reads(), &queue, &group).await?;
            let sentence = explanation.to_string();
            Ok(Json(Explained { sentence, explanation }).into_response())
        }
        _ => Err(WebError::BadRequest(String::from("Name a job, or a queue and a group.")).into()),
    }
}

async fn stopped(State(app): State<Shared>) -> Answer<Stopped> {
    Ok(Json(data::stopped(&app).await?))
}

async fn parked(State(app): State<Shared>, query: Asked<QueueQuery>) -> Answer<Stopped> {
    Ok(Json(data::parked(&app, query?.0.queue.as_deref()).await?))
}

async fn failed(State(app): State<Shared>, filter: Asked<LetterFilter>) -> Answer<Letters> {
    Ok(Json(data::failed(&app, &filter?.0).await?))
}

async fn find(State(app): State<Shared>, query: Asked<FindQuery>) -> Answer<Found> {
    Ok(Json(data::find(&app, &query?.0.q).await?))
}

async fn nodes(State(app): State<Shared>) -> Answer<Vec<ProcessorInfo>> {
    Ok(Json(data::nodes(&app).await?))
}

async fn schedules(
    State(app): State<Shared>,
    query: Asked<ScheduleQuery>,
) -> Answer<Vec<StoredSchedule>> {
    Ok(Json(data::schedules(&app, query?.0.after.as_deref()).await?))
}

async fn batches(State(app): State<Shared>, query: Asked<BatchQuery>) -> Answer<Vec<Batch>> {
    let BatchQuery { before, all } = query?.0;
    Ok(Json(data::batches(&app, before, all).await?))
}

async fn operations(State(app): State<Shared>, query: Asked<LogQuery>) -> Answer<Vec<Operation>> {
    Ok(Json(data::operations(&app, query?.0.before).await?))
}

async fn move_tasks(State(app): State<Shared>, query: Asked<QueueQuery>) -> Answer<Vec<MoveTask>> {
    Ok(Json(data::move_tasks(&app, query?.0.queue.as_deref()).await?))
}

/// Carries an action out: the one way to change something.
async fn change(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    ask: Result<Json<Ask>, JsonRejection>,
) -> Answer<Effect> {
    let Json(ask) = ask?;
    check_change(&app.config, &identity, &headers, ask.action.needs())?;
    Ok(Json(act(&app, &identity, ask).await?))
}

async fn wrong_method() -> ApiError {
    WebError::Method.into()
}
