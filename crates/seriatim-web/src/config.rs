//! The settings of the page, and who may do what.

use std::fmt;
use std::sync::Arc;

use axum::http::HeaderName;
use axum::http::request::Parts;
use seriatim::{Client, NameError};
use sqlx::PgPool;

/// The access of a user. Each level includes the levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Access {
    /// Nothing.
    None,
    /// Read.
    Viewer,
    /// Also change: retry, skip, cancel, pause, park, redrive, …
    Operator,
    /// Also purge, and set queues and the policies of groups.
    Admin,
}

impl Access {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    pub(crate) fn parse(word: &str) -> Self {
        let all = [Self::Viewer, Self::Operator, Self::Admin];
        all.into_iter().find(|access| access.as_str() == word).unwrap_or(Self::None)
    }
}

/// A user's name, recorded with each change, and what the user may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub name: String,
    /// The access of the user.
    pub access: Access,
}

impl From<Access> for Identity {
    /// Returns the identity of a user without a name.
    fn from(access: Access) -> Self {
        Self { name: String::from("unnamed"), access }
    }
}

/// A user with a password or token.
#[derive(Clone)]
pub struct User {
    pub(crate) secret: String,
    pub(crate) identity: Identity,
}

impl User {
    /// Returns a user. An empty `secret` lets nobody in.
    pub fn new(name: &str, secret: &str, access: Access) -> Self {
        Self { secret: secret.to_owned(), identity: Identity { name: name.to_owned(), access } }
    }
}

/// Leaves out the secret.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// How users prove who they are.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Auth {
    /// Nobody is let in. The default.
    #[default]
    Closed,
    /// HTTP basic authentication by name and password. Use TLS in front of it.
    Basic(Vec<User>),
    /// A bearer token for each user. For programs: browsers do not send one by themselves.
    Bearer(Vec<User>),
    /// A proxy in front has authenticated the user and names it in a header. Nobody else may reach
    /// the page, as anybody can write a header.
    ProxyHeader {
        /// The header with the user's name.
        user: HeaderName,
        /// The header with `viewer`, `operator` or `admin`; `None`: all users have `access`.
        role: Option<HeaderName>,
        /// The access of users whose request has no role header.
        access: Access,
    },
    /// No proof at all, for connections from this machine to a loopback name. It needs
    /// [`serve`](crate::serve), or axum's `into_make_service_with_connect_info::<SocketAddr>()`.
    /// Do not use it behind a proxy: then all connections come from this machine.
    Loopback(Access),
}

pub(crate) type AccessFn = Arc<dyn Fn(&Parts) -> Identity + Send + Sync>;
pub(crate) type MetricsFn = Arc<dyn Fn() -> String + Send + Sync>;

/// The settings of the page.
#[derive(Clone, Default)]
pub struct Config {
    pub(crate) client: Client,
    pub(crate) auth: Auth,
    pub(crate) access: Option<AccessFn>,
    pub(crate) show_data: bool,
    pub(crate) read_only: bool,
    pub(crate) write_pool: Option<PgPool>,
    pub(crate) process_metrics: Option<MetricsFn>,
}

impl Config {
    /// Returns the defaults: schema `seriatim`, closed to all, data hidden.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the schema. Default `seriatim`.
    ///
    /// # Errors
    /// [`NameError`] if the name cannot be used.
    pub fn schema(mut self, schema: &str) -> Result<Self, NameError> {
        self.client = Client::new(schema)?;
        Ok(self)
    }

    /// Sets how users prove who they are. Default [`Auth::Closed`].
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Lets the application decide by the request, with its own sessions, say. It goes before
    /// [`auth`](Self::auth). The function returns an [`Identity`] or an [`Access`].
    pub fn access<R: Into<Identity>>(
        mut self,
        decide: impl Fn(&Parts) -> R + Send + Sync + 'static,
    ) -> Self {
        self.access = Some(Arc::new(move |parts| decide(parts).into()));
        self
    }

    /// Sets whether the data and results of jobs are shown. Default false.
    pub fn show_data(mut self, show: bool) -> Self {
        self.show_data = show;
        self
    }

    /// Sets whether changes are refused for all. Default false.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the database role of changes, by the options of a pool that connects as it. Default:
    /// that of the reads.
    pub fn write_pool(mut self, pool: PgPool) -> Self {
        self.write_pool = Some(pool);
        self
    }

    /// Shows the metrics of this process at `/metrics` too, behind those of the fleet: `render`
    /// returns them as Prometheus reads them. For an application that runs processors and has an
    /// exporter of the facade `metrics`. Default none.
    pub fn process_metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.process_metrics = Some(Arc::new(render));
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("schema", &self.client.schema())
            .field("auth", &self.auth)
            .field("access", &self.access.is_some())
            .field("show_data", &self.show_data)
            .field("read_only", &self.read_only)
            .field("process_metrics", &self.process_metrics.is_some())
            .finish_non_exhaustive()
    }
}
