//! Citus: each node has a seriatim schema of its own. An application's schema is distributed,
//! written to by handlers, and moved under them. Skipped where the extension is not installed.

use std::time::Duration;

use seriatim::shards::{ShardId, Shards};
use seriatim::testing::Server;
use seriatim::{Client, Hold, Processor, RetryPolicy, Running};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

use crate::support::witness::{self, Findings, Inside, Step};
use crate::support::{Errors, by_hand, database, eventually, handler_with, queue, size, value};

const QUEUES: [(&str, Hold); 2] =
    [("held", Hold::Transaction), ("leased", Hold::Lease(Duration::from_mins(10)))];
const GROUPS: u32 = 10;
/// A write that forces two phases, as the guide says.
const TWO_PHASES: &str = "delete from public.two_phase where k = -1";

/// A coordinator and two workers, in this order.
struct Cluster {
    servers: Vec<Server>,
    pools: Vec<PgPool>,
}

/// Nodes know each other's databases by one name.
fn options(server: &Server) -> PgConnectOptions {
    server.url().parse().unwrap()
}

/// Returns a pool for a processor, whose sessions define nothing on other nodes.
async fn pool_of(server: &Server) -> PgPool {
    let options = options(server).options([("citus.enable_ddl_propagation", "off")]);
    let pool = PgPoolOptions::new().max_connections(20).acquire_timeout(Duration::from_secs(5));
    pool.connect_with(options).await.unwrap()
}

impl Cluster {
    /// Returns `None` where Citus is not installed.
    async fn start() -> Option<Self> {
        let database = database().await;
        let there = "select count(*) from pg_available_extensions where name = 'citus'";
        if value::<i64>(database.pool(), there).await == 0 {
            println!("skipped: the extension citus is not installed here");
            return None;
        }
        let mut servers = Vec::new();
        for _ in 0..3 {
            let node = Server::builder()
                .setting("shared_preload_libraries", "citus")
                .setting("wal_level", "logical")
                .setting("max_prepared_transactions", "100")
                .setting("citus.node_conninfo", "sslmode=prefer")
                .setting("citus.recover_2pc_interval", "1s");
            servers.push(node.start().await.unwrap());
        }
        let mut pools = Vec::new();
        for server in &servers {
            let pool = pool_of(server).await;
            by_hand(&pool, "create extension citus").await;
            pools.push(pool);
        }
        let ports: Vec<_> = servers.iter().map(|server| options(server).get_port()).collect();
        by_hand(&pools[0], format!("select citus_set_coordinator_host('127.0.0.1', {})", ports[0]))
            .await;
        for port in &ports[1..] {
            by_hand(&pools[0], format!("select citus_add_node('127.0.0.1', {port})")).await;
        }
        Some(Self { servers, pools })
    }

    fn coordinator(&self) -> &PgPool {
        &self.pools[0]
    }

    fn port(&self, node: usize) -> u16 {
        options(&self.servers[node]).get_port()
    }

    /// Makes the application's schema, on the worker of this number, and the marker.
    async fn distribute(&self, worker: usize) {
        by_hand(
            self.coordinator(),
            "set citus.enable_ddl_propagation = on;
             set citus.enable_schema_based_sharding = on;
             create schema app;
             create table app.posting (job bigint primary key, server int not null);
             reset citus.enable_schema_based_sharding;
             create table public.two_phase (k int);
             select citus_add_local_table_to_metadata('public.two_phase');
             set citus.enable_ddl_propagation = off;",
        )
        .await;
        self.move_to(worker).await;
    }

    /// Moves the application's schema, unless it is there.
    async fn move_to(&self, worker: usize) {
        let port = self.port(worker);
        let there = format!(
            "select count(*) from citus_schemas s join citus_shards t on t.table_name = 'app.posting'::regclass
             where schema_name = 'app'::regnamespace and nodeport = {port}"
        );
        if value::<i64>(self.coordinator(), there).await == 0 {
            let moved = format!("select citus_schema_move('app', '127.0.0.1', {port})");
            by_hand(self.coordinator(), moved).await;
        }
    }
}

fn shard(number: usize) -> ShardId {
    ShardId::new(u16::try_from(number).unwrap()).unwrap()
}

async fn worker(shards: &Shards, inside: &Inside, errors: &Errors) -> Running {
    let mut builder = errors.of(Processor::over(shards)).slots(12);
    for (name, hold) in QUEUES {
        let with = (inside.clone(), shards.clone());
        let run = handler_with(with, async |(inside, shards), job, data| {
            let _entered = inside.enter(job);
            let (server, pool) = shards.of_job(job.id()).unwrap();
            let seen = witness::take_step(job, pool, data).await?;
            let id = job.id();
            let tx = job.tx().await?;
            sqlx::query(TWO_PHASES).execute(&mut *tx).await?;
            sqlx::query("insert into app.posting values ($1, $2)")
                .bind(id)
                .bind(i32::from(server.number()))
                .execute(tx)
                .await?;
            Ok(seen)
        });
        let retry = RetryPolicy::new(1_000).base(Duration::from_millis(20));
        builder = builder.queue(queue(name).hold(hold).concurrency(8).retry(retry), run);
    }
    builder.build().unwrap().start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_beside_distributed_data_keep_their_promises_while_it_is_moved() {
    let Some(cluster) = Cluster::start().await else { return };
    for (n, pool) in cluster.pools.iter().enumerate() {
        Client::default().migrate_shard(pool, shard(n)).await.unwrap();
        witness::prepare(pool).await;
    }
    cluster.distribute(1).await;
    let shards = cluster.pools.iter().enumerate().map(|(n, pool)| (shard(n), pool.clone()));
    let shards = Shards::new(shards).unwrap();
    let (inside, errors) = (Inside::default(), Errors::default());
    let running = worker(&shards, &inside, &errors).await;

    let jobs = size(300, 2_000);
    for (n, pool) in cluster.pools.iter().enumerate() {
        let jobs = (0..jobs).map(|job| {
            // Jobs that put themselves off do so at no numbers of this kind.
            let step = Step { producer: 1, n: job * 16, ms: 5 };
            let group = format!("{n}.{}", job / 2 % GROUPS);
            witness::job(QUEUES[job as usize % 2].0, Some(&group), &step)
        });
        seriatim::enqueue_many(pool, jobs).await.unwrap();
    }
    for n in 0..size(3, 8) {
        let pool = &cluster.pools[n % 3];
        let before: i64 = value(pool, "select count(*) from public.effect").await;
        // Sessions are ended as well: what they have prepared is recovered.
        by_hand(
            pool,
            "select pg_terminate_backend(pid) from pg_stat_activity
             where pid <> pg_backend_pid() and query like '%app.posting%'",
        )
        .await;
        cluster.move_to(2 - n % 2).await;
        witness::effects_are_there(pool, i64::from(jobs).min(before + 20)).await;
    }
    for pool in &cluster.pools {
        witness::all_have_ended(pool).await;
        let findings = witness::findings(pool, jobs as usize).await;
        assert_eq!(findings, Findings::default());
    }
    assert_eq!(inside.overlaps(), [""; 0]);
    // Effects on the distributed table: one for each job, of each server.
    let postings = "select array_agg(count order by server) from (
        select server, count(*) from app.posting group by server) s";
    let postings: Vec<i64> = value(cluster.coordinator(), postings).await;
    assert_eq!(postings, [i64::from(jobs); 3]);
    running.shutdown(Duration::from_secs(5)).await;
}

/// A producer on the first worker writes to the distributed table, on the second, and enqueues in
/// the same transaction. Its session is ended in its commit. Returns the numbers of rows and jobs.
async fn a_producer_ends_in_its_commit(cluster: &Cluster, before: &str) -> (i64, i64) {
    let pool = &cluster.pools[1];
    // Commits that notify wait for each other: the first one waits for a standby that is not there.
    by_hand(pool, "alter system set synchronous_standby_names = 'nobody'").await;
    by_hand(pool, "select pg_reload_conf()").await;
    eventually(pool, "select current_setting('synchronous_standby_names')", "nobody".to_owned())
        .await;
    let first = pool_of(&cluster.servers[1]).await;
    let first = tokio::spawn(async move {
        let held = "begin; set local synchronous_commit = on; create table public.held (); notify held; commit";
        sqlx::raw_sql(held).execute(&first).await
    });
    let waits = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    eventually(pool, waits, 1_i64).await;

    let mut producer = pool.acquire().await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *producer).await.unwrap();
    let sql = format!(
        "begin; set local synchronous_commit = local; {before};
         insert into app.posting values (-1, 1);
         select seriatim.enqueue('bought', '1'); notify bought; commit"
    );
    let committing =
        tokio::spawn(
            async move { sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *producer).await },
        );
    let locked = "select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and query like '%app.posting values (-1%' and pid <> pg_backend_pid()";
    eventually(pool, locked, 1_i64).await;
    by_hand(pool, format!("select pg_terminate_backend({pid})")).await;
    assert!(committing.await.unwrap().is_err());
    by_hand(pool, "alter system reset synchronous_standby_names").await;
    by_hand(pool, "select pg_reload_conf()").await;
    first.await.unwrap().unwrap();
    by_hand(pool, "drop table public.held").await;

    let prepared = "select count(*) from pg_prepared_xacts";
    eventually(&cluster.pools[2], prepared, 0_i64).await;
    let rows = "select count(*) from app.posting where job = -1";
    let jobs = "select count(*) from seriatim.job where queue = 'bought'";
    (value(cluster.coordinator(), rows).await, value(pool, jobs).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_on_one_other_node_commits_with_its_job_only_in_two_phases() {
    let Some(cluster) = Cluster::start().await else { return };
    Client::default().migrate_shard(&cluster.pools[1], shard(1)).await.unwrap();
    cluster.distribute(2).await;
    assert_eq!(a_producer_ends_in_its_commit(&cluster, TWO_PHASES).await, (0, 0));
    // Citus, not seriatim: the row is there, and its job is not.
    assert_eq!(a_producer_ends_in_its_commit(&cluster, "select 1").await, (1, 0));
}
