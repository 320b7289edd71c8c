-- What haproxy.cfg calls: asks the router for a worker, gives the next fallback when one refuses the
-- connection, and reports what became of the request. For HAProxy 2.6 or later, with lua-cjson.
-- Load it with `lua-load` (one state for all threads), not with lua-load-per-thread.
local cjson = require "cjson.safe"

-- Where the router is reached, as HAProxy writes addresses: a frontend of haproxy.cfg, so that time
-- limits and health checks are HAProxy's own.
local ROUTER = assert(os.getenv("WARMPATH_ROUTER"), "warmpath.lua: setenv WARMPATH_ROUTER is missing")
local TRIES = 3            -- on how many workers a request may be tried
local RENEW_SECONDS = 30   -- a reservation ends 120 s after the last sign of life

-- Requests with a reservation, by their unique id.
local open = {}

-- --- Reports ------------------------------------------------------------------------------------

-- A report that is lost costs a little accuracy, and its reservation ends with its lease.
local function post_outcome(body)
  local answer = core.httpclient():post {
    dst = ROUTER, url = "http://warmpath/v1/outcome", body = body,
    headers = { ["content-type"] = { "application/json" } },
  }
  if answer.status ~= 200 and answer.status ~= 404 then
    core.Warning("warmpath: report lost, status " .. answer.status .. "\n")
  end
end

local function outcome(request, kind, fields)
  fields = fields or {}
  fields.reservation_id = request.reservation
  fields.kind = kind
  local choice = request.choices[request.current]
  if request.current > 1 and choice then fields.served_by = choice.address end
  return cjson.encode(fields)
end

-- In the background: no request waits for its report.
local function report(request, kind, fields)
  local body = outcome(request, kind, fields)
  core.register_task(function() post_outcome(body) end)
end

-- Renews what is still open, so that a long request goes on to count as load.
core.register_task(function()
  while true do
    core.sleep(RENEW_SECONDS)
    local bodies = {}
    for _, request in pairs(open) do table.insert(bodies, outcome(request, "PROGRESS")) end
    for _, body in ipairs(bodies) do post_outcome(body) end
  end
end)

-- --- Choosing -----------------------------------------------------------------------------------

-- Sets what the backend `picked` connects to.
local function aim(txn, choice)
  local host, port = string.match(choice.address, "^%[?(.-)%]?:(%d+)$")
  txn:set_var("txn.warmpath_host", host)
  txn:set_var("txn.warmpath_port", tonumber(port))
  -- They make a shared port reach the right data-parallel rank.
  for name, value in pairs(choice.headers) do txn.http:req_set_header(name, value) end
end

local function answer(txn, status, body, retry_after)
  local reply = txn:reply()
  reply:set_status(status)
  reply:add_header("content-type", "application/json")
  if retry_after then reply:add_header("retry-after", retry_after) end
  reply:set_body(body)
  txn:done(reply)
end

-- Leaves txn.warmpath_host unset when no pick could be had; haproxy.cfg decides what then happens.
core.register_action("warmpath_pick", { "http-req" }, function(txn)
  local body = txn.sf:req_body() or ""
  local reply = core.httpclient():post {
    dst = ROUTER, url = "http://warmpath/v1/pick", body = '{"openai":{"path":"' .. txn.sf:path() .. '","body":' .. body .. '}}',
    headers = { ["content-type"] = { "application/json" } },
  }
  local pick = reply.status == 200 and cjson.decode(reply.body)
  if not pick then
    txn:set_var("txn.warmpath_pick", "none:" .. reply.status)
    -- The request's own fault, or too much load: the client is told.
    if reply.status >= 400 and reply.status < 500 then
      answer(txn, reply.status, reply.body, reply.headers["retry-after"] and
             reply.headers["retry-after"][0])
    end
    return
  end
  txn:set_var("txn.warmpath_pick", pick.reason)
  local request = { reservation = pick.reservation_id, choices = { pick.endpoint }, current = 1 }
  for _, endpoint in ipairs(pick.fallbacks) do
    if #request.choices == TRIES then break end
    table.insert(request.choices, endpoint)
  end
  request.started = core.now()
  open[txn.sf:unique_id()] = request
  aim(txn, pick.endpoint)
end, 0)

-- The request has come back through the frontend `warmpath_next`, because its worker refused the
-- connection.
core.register_action("warmpath_next", { "http-req" }, function(txn)
  local request = open[txn.sf:fc_pp_unique_id()]
  local choice = request and request.choices[request.current + 1]
  if not choice then return end
  for name in pairs(request.choices[request.current].headers) do txn.http:req_del_header(name) end
  request.current = request.current + 1
  aim(txn, choice)
end, 0)

-- --- The end ------------------------------------------------------------------------------------

-- Watches a request for its answer's head, the first token of a stream, and its end, whoever ends it.
local Watch = {}
Watch.__index = Watch
Watch.id = "Warmpath"
Watch.flags = filter.FLT_CFG_FL_HTX

function Watch:new()
  return setmetatable({}, Watch)
end

function Watch:http_headers(txn, message)
  if not message.channel:is_resp() then return filter.CONTINUE end
  self.status = tonumber(txn.sf:status())
  local kind = txn.sf:res_hdr("content-type") or ""
  if self.status == 200 and string.find(kind, "text/event-stream", 1, true) then
    filter.register_data_filter(self, message.channel)
  end
  return filter.CONTINUE
end

function Watch:http_payload(txn, message)
  local request = open[txn.sf:unique_id()]
  if request then
    local now = core.now()
    local ms = (now.sec - request.started.sec) * 1000 + (now.usec - request.started.usec) / 1000
    report(request, "FIRST_TOKEN", { ttft_ms = ms })
  end
  filter.unregister_data_filter(self, message.channel)
end

function Watch:end_analyze(txn, channel)
  if not channel:is_resp() then return filter.CONTINUE end
  local id = txn.sf:unique_id()
  local request = open[id]
  if request then
    open[id] = nil
    -- A stream that the client leaves counts as finished: its prompt is in the worker's cache. To
    -- see its end would need Lua at each piece of every answer.
    report(request, self.status and self.status < 400 and "FINISHED" or "FAILED")
  end
  return filter.CONTINUE
end

core.register_filter("warmpath", Watch, function(watch) return watch end)
