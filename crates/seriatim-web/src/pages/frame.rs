//! The frame of all pages, and the visit of one.

use std::convert::Infallible;

use askama::Template;
use axum::extract::rejection::{ExtensionRejection, QueryRejection};
use axum::extract::{Extension, FromRequestParts, OriginalUri, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::{Html, IntoResponse, Response};
use chrono::{DateTime, Utc};
use seriatim::shards::ShardId;

use crate::action::Buttons;
use crate::assets;
use crate::config::Identity;
use crate::data::Shared;
use crate::error::{PageError, WebError};
use crate::pages::url::field;

pub(crate) type Shown = Result<Response, PageError>;
pub(crate) type Asked<T> = Result<Query<T>, QueryRejection>;

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
    shard: Option<ShardId>,
}

/// A request for a page.
pub(crate) struct Visit {
    pub(crate) app: Shared,
    identity: Identity,
    /// The address as it was asked for.
    uri: Uri,
    /// The prefix of relative addresses. It is empty, but for a mount point that was asked for
    /// without its slash.
    pub(crate) base: String,
    /// The text that is looked for.
    find: String,
}

impl FromRequestParts<Shared> for Visit {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Self::Rejection> {
        let Extension(identity) = Extension::from_request_parts(parts, app).await?;
        let uri: Result<_, Infallible> = OriginalUri::from_request_parts(parts, app).await;
        let Ok(OriginalUri(uri)) = uri;
        let base = match uri.path().rsplit_once('/') {
            Some((_, mount)) if parts.uri.path() == "/" && !mount.is_empty() => format!("{mount}/"),
            _ => String::new(),
        };
        let app = Shared::clone(app);
        Ok(Self { app, identity, uri, base, find: String::new() })
    }
}

impl Visit {
    /// Returns the visit with the text that is looked for.
    pub(crate) fn finding(self, find: &str) -> Self {
        Self { find: find.to_owned(), ..self }
    }

    /// Returns a maker of the buttons that the visitor may press.
    pub(crate) fn buttons(&self) -> Buttons<'_> {
        Buttons::new(&self.app, self.identity.access)
    }

    /// Shows a page in the frame. `render` returns its title and its main part.
    pub(crate) async fn show(
        &self,
        render: impl AsyncFnOnce() -> Result<(String, String), WebError>,
    ) -> Shown {
        let access = self.identity.access;
        let render = async || {
            let (title, main) = render().await?;
            let standby = self.app.client.standby_at(&self.app.reads()).await?.map(of_a_standby);
            Ok((title, standby.unwrap_or_default() + &main))
        };
        let rendered = self.app.rendered(self.uri.to_string(), access, render).await?;
        let layout = Layout {
            title: &rendered.title,
            style: assets::style_path(),
            script: assets::script_path(),
            base: &self.base,
            main: &rendered.main,
            took_ms: rendered.took.as_millis(),
            user: &self.identity.name,
            role: access.as_str(),
            find: field(&self.find),
            shard: self.app.shard,
        };
        Ok(Html(layout.render()?).into_response())
    }
}

/// Returns the line above a page that was read from a standby.
fn of_a_standby(at: DateTime<Utc>) -> String {
    let at = at.format("%Y-%m-%d %H:%M:%S UTC");
    format!(
        "<p class=\"standby\">Read from a standby, as of {at}. Sessions of the primary are not seen \
         here.</p>\n"
    )
}
