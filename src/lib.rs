//! Ordered job groups in PostgreSQL.

#[cfg(feature = "testing")]
pub mod testing;
