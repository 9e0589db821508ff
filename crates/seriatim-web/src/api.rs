//! The JSON API: the same reads as the pages, and the actions.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use seriatim::admin::{MoveTask, Operation, QueueOverview};
use seriatim::explain::ProcessorInfo;

use crate::access::check_change;
use crate::action::{Action, Ask, Effect, act};
use crate::app::App;
use crate::config::Identity;
use crate::data::{
    self, Found, JobDetail, Lane, LaneFilter, LetterFilter, Letters, Shared, Stopped,
};
use crate::error::WebError;

/// Bounds the body of a request, in bytes.
const BODY_LIMIT: usize = 64 * 1024;

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/queues", get(queues))
        .route("/groups", get(groups))
        .route("/lane", get(lane))
        .route("/jobs/{id}", get(job))
        .route("/explain", get(explain))
        .route("/stopped", get(stopped))
        .route("/parked", get(parked))
        .route("/failed", get(failed))
        .route("/find", get(find))
        .route("/nodes", get(nodes))
        .route("/operations", get(operations))
        .route("/move-tasks", get(move_tasks))
        .route("/move-tasks/{verb}", post(move_task_action))
        .route("/nodes/release", post(release))
        .route("/jobs/{id}/{verb}", post(job_action))
        .route("/groups/{verb}", post(group_action))
        .route("/queues/{verb}", post(queue_action))
        .route("/parked/{verb}", post(parked_action))
        .route("/failed/{verb}", post(failed_action))
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
}

/// An error as JSON.
pub(crate) struct ApiError(WebError);

impl<E: Into<WebError>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.0.into_json()
    }
}

type Answer<T> = Result<Json<T>, ApiError>;
type Asked<T> = Result<Query<T>, QueryRejection>;

async fn queues(State(app): State<Shared>) -> Answer<Vec<QueueOverview>> {
    Ok(Json(data::queues(&app).await?.to_vec()))
}

async fn groups(
    State(app): State<Shared>,
    filter: Asked<LaneFilter>,
) -> Answer<seriatim::admin::GroupPage> {
    Ok(Json(data::groups(&app, &filter?.0).await?))
}

#[derive(Deserialize)]
struct OfGroup {
    queue: String,
    group: String,
}

async fn lane(State(app): State<Shared>, of: Asked<OfGroup>) -> Answer<Lane> {
    let Query(of) = of?;
    Ok(Json(data::lane(&app, &of.queue, &of.group).await?))
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
            let explanation = app.client.explain_group(&app.reads, &queue, &group).await?;
            let sentence = explanation.to_string();
            Ok(Json(Explained { sentence, explanation }).into_response())
        }
        _ => Err(WebError::BadRequest(String::from("Name a job, or a queue and a group.")).into()),
    }
}

async fn stopped(State(app): State<Shared>) -> Answer<Stopped> {
    Ok(Json(data::stopped(&app).await?))
}

#[derive(Deserialize)]
struct OfQueue {
    queue: Option<String>,
}

async fn parked(State(app): State<Shared>, of: Asked<OfQueue>) -> Answer<Stopped> {
    Ok(Json(data::parked(&app, of?.0.queue.as_deref()).await?))
}

async fn failed(State(app): State<Shared>, filter: Asked<LetterFilter>) -> Answer<Letters> {
    Ok(Json(data::failed(&app, &filter?.0).await?))
}

#[derive(Deserialize)]
struct Text {
    q: String,
}

async fn find(State(app): State<Shared>, text: Asked<Text>) -> Answer<Found> {
    Ok(Json(data::find(&app, &text?.0.q).await?))
}

async fn nodes(State(app): State<Shared>) -> Answer<Vec<ProcessorInfo>> {
    Ok(Json(data::nodes(&app).await?))
}

#[derive(Deserialize)]
struct Before {
    before: Option<i64>,
}

async fn operations(State(app): State<Shared>, of: Asked<Before>) -> Answer<Vec<Operation>> {
    Ok(Json(data::operations(&app, of?.0.before).await?))
}

async fn move_tasks(State(app): State<Shared>, of: Asked<OfQueue>) -> Answer<Vec<MoveTask>> {
    Ok(Json(data::move_tasks(&app, of?.0.queue.as_deref()).await?))
}

type Body = Result<Json<Ask>, JsonRejection>;

async fn job_action(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    path: Result<Path<(i64, String)>, PathRejection>,
    body: Body,
) -> Answer<Effect> {
    let Path((job, verb)) = path?;
    run(&app, &identity, &headers, Action::of_job(job, &verb), &body?.0).await
}

async fn group_action(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer<Effect> {
    let (verb, ask) = (path?.0, body?.0);
    let (queue, group) = (given(ask.queue.as_ref())?, given(ask.group.as_ref())?);
    let action = Action::of_group(queue, group, &ask, &verb);
    run(&app, &identity, &headers, action, &ask).await
}

async fn queue_action(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer<Effect> {
    let (verb, ask) = (path?.0, body?.0);
    let action = Action::of_queue(given(ask.queue.as_ref())?, &ask, &verb);
    run(&app, &identity, &headers, action, &ask).await
}

async fn release(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Effect> {
    let ask = body?.0;
    let node = ask.node.clone().filter(|node| !node.contains('\0'));
    let unnamed = || WebError::BadRequest(String::from("Name the node, without a NUL."));
    let node = node.ok_or_else(unnamed)?;
    run(&app, &identity, &headers, Some(Action::ReleaseNode { node }), &ask).await
}

async fn parked_action(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer<Effect> {
    let (verb, ask) = (path?.0, body?.0);
    let action =
        Action::of_parked(given(ask.queue.as_ref())?, given(ask.group.as_ref())?, ask.job, &verb);
    run(&app, &identity, &headers, action, &ask).await
}

async fn failed_action(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer<Effect> {
    let (verb, ask) = (path?.0, body?.0);
    run(&app, &identity, &headers, Action::of_failed(&ask, &verb)?, &ask).await
}

async fn move_task_action(
    State(app): State<Shared>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer<Effect> {
    let (verb, ask) = (path?.0, body?.0);
    let action = Action::of_move_task(given(ask.queue.as_ref())?, &ask, &verb)?;
    run(&app, &identity, &headers, action, &ask).await
}

async fn wrong_method() -> ApiError {
    WebError::Method.into()
}

fn given(name: Option<&String>) -> Result<String, WebError> {
    let missing = || WebError::BadRequest(String::from("Name the queue, and the group if needed."));
    name.cloned().ok_or_else(missing)
}

async fn run(
    app: &Arc<App>,
    identity: &Identity,
    headers: &HeaderMap,
    action: Option<Action>,
    ask: &Ask,
) -> Answer<Effect> {
    let unknown = || WebError::NotFound(String::from("There is no such action."));
    let action = action.ok_or_else(unknown)?;
    check_change(&app.config, identity, headers, action.needs())?;
    Ok(Json(act(app, identity, &action, ask).await?))
}
