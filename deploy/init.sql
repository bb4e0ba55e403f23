-- What only a superuser may do; the image runs it once, with psql, when it makes its data directory.
-- The service itself refuses to run as a superuser, since row-level security does not bind one.
\getenv password APP_PASSWORD
CREATE ROLE threefold_app LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'password';
CREATE DATABASE threefold OWNER threefold_app;
\connect threefold
CREATE EXTENSION vector;
