//! Faults around the library: servers, networks, clocks, disks and lost answers.
//! Random programs live here too, because a checker decides what they have shown.
//! A failure of one handler or one job is no fault: it belongs in `features`.
//! The failover that P6 promises belongs in `promises`.

mod checking_histories;
mod citus;
mod failovers;
mod far_server;
#[allow(clippy::module_inception, reason = "the faults themselves, as the documents name them")]
mod faults;
mod following;
mod full_notify_queue;
mod led_elsewhere;
mod lost_answers;
mod narrow_link;
mod promotions;
mod random_histories;
mod second_server;
mod shards;
mod shut_out;
