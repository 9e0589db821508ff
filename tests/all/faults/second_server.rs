//! More servers that tests share, because to start a server takes seconds. No test may harm them.

use seriatim::testing::Server;
use tokio::sync::OnceCell;

use crate::support::standby::standby_of;

/// Returns the second server of this process. The first call starts it.
///
/// It sees a deadlock soon, and has connections for many worker processes.
pub(crate) async fn second_server() -> Server {
    static SECOND: OnceCell<Server> = OnceCell::const_new();
    let start = async {
        let builder = Server::builder().setting("deadlock_timeout", "100ms");
        builder.setting("max_connections", "600").start().await.unwrap()
    };
    SECOND.get_or_init(|| start).await.clone()
}

/// Returns a primary of this process and its standby, which nobody promotes. `None` where there is
/// no standby to be had. The first call starts them.
pub(crate) async fn with_standby() -> Option<(Server, Server)> {
    static PAIR: OnceCell<Option<(Server, Server)>> = OnceCell::const_new();
    let start = async {
        let server = Server::start().await.unwrap();
        standby_of(&server).await.map(|standby| (server, standby))
    };
    PAIR.get_or_init(|| start).await.clone()
}
