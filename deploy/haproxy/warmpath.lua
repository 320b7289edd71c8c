-- What haproxy.cfg calls: asks the router for a worker, gives the next fallback when one refuses the
-- connection, and reports what became of the request. For HAProxy 2.6 or later.
-- Load it with `lua-load` (one state for all threads), not with lua-load-per-thread.
-- Where the router is reached, as HAProxy writes addresses: a frontend of haproxy.cfg, so that time
-- limits and health checks are HAProxy's own.
local ROUTER = assert(os.getenv("WARMPATH_ROUTER"), "warmpath.lua: setenv WARMPATH_ROUTER is missing")
-- The model of requests whose first bytes do not name one: for bodies beyond tune.bufsize only.
local MODEL = os.getenv("WARMPATH_MODEL") or ""
local TRIES = 3            -- on how many workers a request may be tried
local RENEW_SECONDS = 30   -- a reservation ends 120 s after the last sign of life

local RANK = "x-data-parallel-rank"

-- Headers of the client that mean something to the router. HINTS are not for the worker. Nor is a model
-- to rewrite to: the body is passed on as it is, so its own model is the one to route for.
local HINTS = {
  "x-amzn-sagemaker-prefix-aware-id",
  "x-gateway-destination-endpoint-subset",
  "x-warmpath-exclude",
  "x-warmpath-max-wait-ms",
  "x-warmpath-lease-ms",
  "x-llm-d-slo-ttft-ms",
  "x-llm-d-slo-tpot-ms",
  "x-slo-ttft-ms",
  "x-slo-tpot-ms",
  "x-llm-d-inference-fairness-id",
  "x-gateway-inference-fairness-id",
  "x-llm-d-inference-objective",
  "x-gateway-inference-objective",
}
local REWRITES = { "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite", "x-warmpath-path" }
local PASSED = {
  ["x-request-id"] = true, ["prefer"] = true, ["content-encoding"] = true,
  ["x-session-id"] = true, ["x-session-token"] = true, ["x-session-affinity"] = true,
  ["x-claude-code-session-id"] = true,
}
for _, name in ipairs(HINTS) do PASSED[name] = true end

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

local function outcome(request, kind, more)
  local body = '{"reservation_id":"' .. request.reservation .. '","kind":"' .. kind .. '"'
  if request.tried > 1 then
    body = body .. ',"served_by":"' .. request.choices[request.tried] .. '"'
  end
  return body .. (more or "") .. "}"
end

-- In the background: no request waits for its report.
local function report(request, kind, more)
  local body = outcome(request, kind, more)
  core.register_task(function() post_outcome(body) end)
end

-- Renews what is open, so that a long request goes on to count as load.
core.register_task(function()
  while true do
    core.sleep(RENEW_SECONDS)
    local before = core.now().sec - RENEW_SECONDS
    local bodies = {}
    for _, request in pairs(open) do
      if request.started.sec < before then table.insert(bodies, outcome(request, "PROGRESS")) end
    end
    for _, body in ipairs(bodies) do post_outcome(body) end
  end
end)

-- --- Choosing -----------------------------------------------------------------------------------

-- Sets what the backend `picked` connects to: the next address that has not been tried.
local function aim(txn, request)
  request.tried = request.tried + 1
  local host, port = string.match(request.choices[request.tried], "^%[?(.-)%]?:(%d+)$")
  txn:set_var("txn.warmpath_host", host)
  txn:set_var("txn.warmpath_port", tonumber(port))
end

local function answer(txn, status, body, retry_after)
  local reply = txn:reply()
  reply:set_status(status)
  reply:add_header("content-type", "application/json")
  if retry_after then reply:add_header("retry-after", retry_after) end
  reply:set_body(body)
  txn:done(reply)
end

local function headers_for_pick(txn)
  local headers = { ["content-type"] = { "application/json" } }
  for name, values in pairs(txn.http:req_get_headers()) do
    if PASSED[name] then
      local list = {}
      for _, value in pairs(values) do table.insert(list, value) end
      headers[name] = list
    end
  end
  return headers
end

-- A piece of text as JSON, without a sequence of bytes that the cut has left incomplete.
local function quote(text)
  text = string.gsub(text, "[\xC2-\xF4][\x80-\xBF]*$", "")
  return '"' .. string.gsub(text, '[%c"\\]', function(c)
    return string.format("\\u%04x", string.byte(c))
  end) .. '"'
end

-- What the router is asked: the client's body as it is; of a body that does not fit into tune.bufsize
-- the first bytes as text, which conversations and shared documents have in common as well. A body
-- without a length that was cut shows by its end.
local function question(txn)
  local headers, body = headers_for_pick(txn), txn.sf:req_body() or ""
  local size = tonumber(txn.sf:req_body_size()) or 0
  if size <= #body and string.find(body, "}%s*$") then
    headers["x-warmpath-path"] = { txn.sf:path() }
    return headers, body, ""
  end
  local model = string.match(body, '"model"%s*:%s*"([^"\\]+)"') or MODEL
  return headers, '{"model":' .. quote(model) .. ',"text":' .. quote(body) .. "}", "first_bytes:"
end

-- Leaves txn.warmpath_host unset when no pick could be had; haproxy.cfg decides what then happens.
core.register_action("warmpath_pick", { "http-req" }, function(txn)
  local headers, body, how = question(txn)
  for _, name in ipairs(HINTS) do txn.http:req_del_header(name) end
  for _, name in ipairs(REWRITES) do txn.http:req_del_header(name) end
  local reply = core.httpclient():post {
    dst = ROUTER, url = "http://warmpath/v1/pick", headers = headers, body = body,
  }
  local function header(name)
    return reply.headers and reply.headers[name] and reply.headers[name][0]
  end
  local reservation = header("x-warmpath-reservation-id")
  if reply.status ~= 200 or not reservation then
    txn:set_var("txn.warmpath_pick", "none:" .. reply.status)
    -- The request's own fault, or too much load: the client is told. Not of what may be a cut's.
    local doubt = reply.status == 400 and not txn.sf:req_hdr("content-length")
    if reply.status >= 400 and reply.status < 500 and not doubt then
      answer(txn, reply.status, reply.body, header("retry-after"))
    end
    return
  end
  local request = {
    reservation = reservation,
    choices = { header("x-gateway-destination-endpoint") },
    tried = 0,
    started = core.now(),
  }
  for address in string.gmatch(header("x-warmpath-fallbacks") or "", "[^,]+") do
    if #request.choices == TRIES then break end
    table.insert(request.choices, address)
  end
  txn:set_var("txn.warmpath_pick", how .. header("x-warmpath-reason"))
  open[txn.sf:unique_id()] = request
  -- Makes a port that several data-parallel ranks share reach the right one.
  if header(RANK) then txn.http:req_set_header(RANK, header(RANK)) end
  aim(txn, request)
end, 0)

-- The request has come back through the frontend `warmpath_next`, because its worker refused the
-- connection.
core.register_action("warmpath_next", { "http-req" }, function(txn)
  local request = open[txn.sf:fc_pp_unique_id()]
  if not request or not request.choices[request.tried + 1] then return end
  -- Fallbacks are addresses without ranks.
  txn.http:req_del_header(RANK)
  aim(txn, request)
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
    report(request, "FIRST_TOKEN", string.format(',"ttft_ms":%.3f', ms))
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
