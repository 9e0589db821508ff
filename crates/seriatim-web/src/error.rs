//! The errors that refuse a request, as a page or as JSON.

use askama::Template;
use axum::extract::Request;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use axum::{Json, extract::OriginalUri};
use serde::Serialize;
use seriatim::{BatchError, ControlError};

use crate::assets::style_path;

#[derive(Debug, thiserror::Error)]
pub(crate) enum WebError {
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("Sign in to see this page.")]
    SignIn,
    #[error("Pages and reads need GET, and changes need POST.")]
    Method,
    /// The library refused a change.
    #[error("{0}")]
    Refused(String),
    #[error("The database did not answer within 2 s. Narrow what you look for, or try again.")]
    TooSlow,
    #[error("The database refused, as the page's role lacks a right ({0}). See docs/roles.sql.")]
    Rights(String),
    #[error(
        "This database has no tables of seriatim, or older ones ({0}). Run `seriatim migrate` on it."
    )]
    NotMigrated(String),
    #[error("The database does not answer. The log of this page's server says why.")]
    Away,
    #[error("The database refused. The log of this page's server says why.")]
    Database,
    #[error("The page could not be made. The log of its server says why.")]
    Render,
}

impl WebError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::SignIn => StatusCode::UNAUTHORIZED,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Refused(_) => StatusCode::CONFLICT,
            Self::TooSlow | Self::NotMigrated(_) | Self::Away | Self::Database => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Rights(_) | Self::Render => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns JSON for the API's addresses and a page for the others.
    pub(crate) fn into_response_for(self, parts: &Parts) -> Response {
        if is_api(&parts.uri) { self.into_json() } else { self.into_page() }
    }

    pub(crate) fn into_page(self) -> Response {
        let status = self.status();
        (status, Html(error_page(&self.to_string(), status.is_server_error()))).into_response()
    }

    pub(crate) fn into_json(self) -> Response {
        #[derive(Serialize)]
        struct Body {
            error: String,
        }
        (self.status(), Json(Body { error: self.to_string() })).into_response()
    }
}

/// Returns the page of an error that came before or instead of a page. With `again` the browser
/// asks once more by itself, every few seconds.
fn error_page(message: &str, again: bool) -> String {
    #[derive(Template)]
    #[template(path = "error.html")]
    struct ErrorPage<'a> {
        message: &'a str,
        again: bool,
        style: String,
    }
    let style = style_path();
    ErrorPage { message, again, style }.render().unwrap_or_else(|_| String::from("error"))
}

/// An error of a handler that shows a page.
pub(crate) struct PageError(WebError);

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

/// An error of a handler that answers with JSON.
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

fn is_api(uri: &Uri) -> bool {
    uri.path().starts_with("/api/")
}

pub(crate) async fn no_such_page(OriginalUri(_): OriginalUri, uri: Uri) -> Response {
    let error = WebError::NotFound(String::from("There is no such page."));
    if is_api(&uri) { error.into_json() } else { error.into_page() }
}

pub(crate) async fn wrong_method() -> Response {
    WebError::Method.into_page()
}

/// Refuses addresses with a NUL: no name has one, and the database takes none.
pub(crate) async fn without_nul(request: Request, next: Next) -> Response {
    // A percent sign of a name is itself encoded.
    let has_nul = |text: &str| text.contains("%00");
    let uri = request.uri();
    if has_nul(uri.path()) || uri.query().is_some_and(has_nul) {
        let error = WebError::BadRequest(String::from("An address has no NUL (%00)."));
        return if is_api(uri) { error.into_json() } else { error.into_page() };
    }
    next.run(request).await
}

impl From<sqlx::Error> for WebError {
    fn from(error: sqlx::Error) -> Self {
        let refusal = error.as_database_error();
        let code = refusal.and_then(sqlx::error::DatabaseError::code);
        let message = || refusal.map_or("", sqlx::error::DatabaseError::message).to_owned();
        match code.as_deref() {
            Some("57014" | "55P03") => Self::TooSlow,
            Some("42501") => Self::Rights(message()),
            // The library's functions say so of their arguments; and PostgreSQL of JSON with a NUL,
            // half a surrogate pair, or a number that no type holds.
            Some("22023" | "22P02" | "22P05" | "22003") => Self::BadRequest(message()),
            // No such schema, table, function or column.
            Some("3F000" | "42P01" | "42883" | "42703") => Self::NotMigrated(message()),
            _ => {
                tracing::warn!(%error, "the page could not ask the database");
                if refusal.is_none() || is_away(code.as_deref()) {
                    Self::Away
                } else {
                    Self::Database
                }
            }
        }
    }
}

/// Returns whether a code of an error says that the server is not there for anybody: it starts, it
/// stops, it has no connection left.
fn is_away(code: Option<&str>) -> bool {
    code.is_some_and(|code| ["08", "57P", "53"].iter().any(|class| code.starts_with(class)))
}

impl From<ControlError> for WebError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Database(error) => error.into(),
            ControlError::NoSuchJob { .. }
            | ControlError::NoSuchSchedule { .. }
            | ControlError::NoSuchMoveTask { .. }
            | ControlError::NoSuchBatch { .. } => Self::NotFound(error.to_string()),
            ControlError::Name(_) | ControlError::OutOfRange { .. } | ControlError::Schedule(_) => {
                Self::BadRequest(error.to_string())
            }
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<BatchError> for WebError {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Database(error) => error.into(),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<askama::Error> for WebError {
    fn from(error: askama::Error) -> Self {
        tracing::error!(%error, "a page could not be rendered");
        Self::Render
    }
}

impl From<QueryRejection> for WebError {
    fn from(rejection: QueryRejection) -> Self {
        Self::BadRequest(rejection.body_text())
    }
}

impl From<PathRejection> for WebError {
    fn from(rejection: PathRejection) -> Self {
        Self::BadRequest(rejection.body_text())
    }
}

impl From<JsonRejection> for WebError {
    fn from(rejection: JsonRejection) -> Self {
        Self::BadRequest(rejection.body_text())
    }
}
