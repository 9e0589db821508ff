//! The page over real HTTP, from a real PostgreSQL, and in a real browser.

mod actions;
mod browser;
mod hostile;
mod pages;
mod scale;
mod security;
mod support;
