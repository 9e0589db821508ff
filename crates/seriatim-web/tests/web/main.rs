//! The page over real HTTP, from a real PostgreSQL, and in a real browser.

mod actions;
mod browser;
mod hostile;
mod pages;
mod security;
mod support;
