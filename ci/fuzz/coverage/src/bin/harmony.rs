#![no_main]

#[path = "../driver.rs"]
mod driver;
