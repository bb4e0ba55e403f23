-- Statements that need a superuser. The image runs them once with psql, when it creates its data directory.
-- The service does not start as a superuser, because row-level security does not apply to superusers.
\getenv password APP_PASSWORD
CREATE ROLE threefold_app LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'password';
CREATE DATABASE threefold OWNER threefold_app;
\connect threefold
CREATE EXTENSION vector;
