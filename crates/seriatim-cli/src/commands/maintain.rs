//! `seriatim maintain`: maintenance for all queues, without a processor.

use futures::future::{join_all, select_all};
use seriatim::Client;
use sqlx::postgres::PgPoolOptions;

use crate::args::{Global, Maintain, NumberedServer};
use crate::commands::serve::{none_refuses, shards_of};
use crate::failure::Failure;
use crate::maintainer::Maintainer;
use crate::output::Form;
use crate::session::{Session, check_number};

/// Maintains the schemas until a signal, or once.
pub(crate) async fn run(session: &Session, maintain: &Maintain) -> Result<(), Failure> {
    refuse_dry_run(session.dry_run)?;
    let clients = clients(maintain, session.client.schema())?;
    let maintainers = clients
        .into_iter()
        .map(|client| Maintainer::new(client, session.pool.clone(), None, session.form));
    until_a_signal(maintainers.collect(), maintain.once).await
}

/// Maintains the schemas on several servers. Servers may be away, unless it is once.
pub(crate) async fn run_over(
    global: &Global,
    maintain: &Maintain,
    numbered: &[NumberedServer],
) -> Result<(), Failure> {
    refuse_dry_run(global.dry_run)?;
    let clients = clients(maintain, &global.schema)?;
    let shards = shards_of(numbered, 100, &PgPoolOptions::new().max_connections(2)).await?;
    for client in &clients {
        let check = async |shard, pool: &_| check_number(client, pool, shard).await;
        none_refuses(&shards, check).await?;
    }
    let form = if global.json { Form::Json } else { Form::Text };
    let maintainers = shards.iter().flat_map(|(shard, pool)| {
        clients
            .iter()
            .map(move |client| Maintainer::new(client.clone(), pool.clone(), Some(shard), form))
    });
    until_a_signal(maintainers.collect(), maintain.once).await
}

fn refuse_dry_run(dry_run: bool) -> Result<(), Failure> {
    if dry_run {
        return Err(Failure::Usage(String::from("maintain has no dry run: leave --dry-run out")));
    }
    Ok(())
}

fn clients(maintain: &Maintain, schema: &str) -> Result<Vec<Client>, Failure> {
    if maintain.schemas.is_empty() {
        return Ok(vec![client(schema)?]);
    }
    maintain.schemas.iter().map(|schema| client(schema)).collect()
}

/// Returns a client that works behind a transaction pooler too.
fn client(schema: &str) -> Result<Client, Failure> {
    Ok(Client::new(schema)?.named_statements(false))
}

async fn until_a_signal(maintainers: Vec<Maintainer>, once: bool) -> Result<(), Failure> {
    if once {
        let done = join_all(maintainers.iter().map(Maintainer::once)).await;
        return done.into_iter().collect();
    }
    let running = maintainers.iter().map(|one| Box::pin(one.run()));
    tokio::select! {
        (stopped, ..) = select_all(running) => match stopped {},
        ended = seriatim::shutdown_signal() => ended.map_err(Failure::could_not("wait for a signal")),
    }
}
