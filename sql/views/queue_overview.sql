-- The queues at a glance: the function of the same name, which may be given another bound of its
-- counts.
create or replace view {schema}.queue_overview as
select * from {schema}.queue_overview();
