//! A PostgreSQL for tests and examples.
