-- What warmpath.conf calls in the phases of a request: asks the router for a worker, tries the
-- fallbacks when it refuses the connection, and reports what became of the request.
local balancer = require "ngx.balancer"

local M = {}

-- Set once, before the worker processes start.
local settings

local RENEW_SECONDS = 30     -- a reservation ends 120 s after the last sign of life
local KEPT_CONNECTIONS = 64  -- to the router, in each worker process
local KEPT_MS = 30000
local RANK = "x-data-parallel-rank"

-- Requests of this worker process with a reservation.
local open = {}

function M.configure(options)
  local host, port = string.match(options.router, "^(.+):(%d+)$")
  assert(host, "router: must be host:port")
  assert(options.on_failure == "open" or options.on_failure == "closed",
         "on_failure: must be open or closed")
  settings = {
    host = host, port = tonumber(port),
    open = options.on_failure == "open",
    tries = options.tries or 3,
  }
end

-- --- Reports ------------------------------------------------------------------------------------

-- One POST over a kept connection. Returns nothing: a report that is lost costs a little accuracy,
-- and its reservation ends with its lease.
local function post(path, body)
  local socket = ngx.socket.tcp()
  socket:settimeouts(500, 2000, 2000)
  local ok, err = socket:connect(settings.host, settings.port)
  if ok then
    ok, err = socket:send {
      "POST ", path, " HTTP/1.1\r\nHost: ", settings.host,
      "\r\nContent-Type: application/json\r\nContent-Length: ", #body, "\r\n\r\n", body,
    }
  end
  local line
  if ok then line, err = socket:receive("*l") end
  local length, keep = 0, true
  while line and line ~= "" do
    line, err = socket:receive("*l")
    local name, value = string.match(line or "", "^([^:]+):%s*(.-)%s*$")
    name = name and string.lower(name)
    if name == "content-length" then length = tonumber(value) or 0 end
    if name == "connection" and string.lower(value) == "close" then keep = false end
  end
  if line and length > 0 then line, err = socket:receive(length) end
  if not line then
    ngx.log(ngx.WARN, "warmpath: report lost: ", err)
    socket:close()
  elseif keep then
    socket:setkeepalive(KEPT_MS, KEPT_CONNECTIONS)
  else
    socket:close()
  end
end

-- The address that answered or was tried last; NGINX lists all tries.
local function served_by()
  return string.match(ngx.var.upstream_addr or "", "([^%s,]+)$")
end

local function outcome(request, kind, more)
  local body = '{"reservation_id":"' .. request.reservation .. '","kind":"' .. kind .. '"'
  if request.served_by then body = body .. ',"served_by":"' .. request.served_by .. '"' end
  return body .. (more or "") .. "}"
end

-- Sends a report in the background: no request waits for its report.
local function report(request, kind, more)
  local address = served_by()
  if address and address ~= request.choices[1] then request.served_by = address end
  local ok, err = ngx.timer.at(0, function(_, body) post("/v1/outcome", body) end,
                               outcome(request, kind, more))
  if not ok then ngx.log(ngx.WARN, "warmpath: report lost: ", err) end
end

-- Renews what is open, so that a long request goes on to count as load. For init_worker.
function M.start()
  assert(ngx.timer.every(RENEW_SECONDS, function()
    local before = ngx.now() - RENEW_SECONDS
    local bodies = {}
    for request in pairs(open) do
      if request.started < before then table.insert(bodies, outcome(request, "PROGRESS")) end
    end
    for _, body in ipairs(bodies) do post("/v1/outcome", body) end
  end))
end

-- --- Phases -------------------------------------------------------------------------------------

local function refuse(status, body, retry_after)
  ngx.status = status
  ngx.header["Content-Type"] = "application/json"
  ngx.header["Retry-After"] = retry_after
  ngx.print(body)
  return ngx.exit(status)
end

local function without_pick(status)
  ngx.var.warmpath_pick = "none:" .. status
  if settings.open then
    ngx.var.warmpath_upstream = "any_worker"
    return
  end
  return refuse(503, '{"error":{"message":"no worker could be chosen, try again",' ..
                     '"type":"service_unavailable","code":503}}', 1)
end

-- access: chooses. A request is never held up for longer than the limits of /warmpath/pick.
function M.pick()
  if ngx.req.get_method() ~= "POST" then  -- GET /v1/models: any worker can say
    ngx.var.warmpath_upstream = "any_worker"
    return
  end
  ngx.req.read_body()
  local answer = ngx.location.capture("/warmpath/pick", {
    method = ngx.HTTP_POST,
    always_forward_body = true,
    vars = { warmpath_path = ngx.var.uri },
  })
  local header = {}
  for name, value in pairs(answer.header) do header[string.lower(name)] = value end
  local reservation = header["x-warmpath-reservation-id"]
  if answer.status ~= 200 or not reservation then
    -- The request's own fault, or too much load: the client is told.
    if answer.status >= 400 and answer.status < 500 then
      ngx.var.warmpath_pick = "refused:" .. answer.status
      return refuse(answer.status, answer.body, header["retry-after"])
    end
    return without_pick(answer.status)
  end
  local request = {
    reservation = reservation,
    choices = { header["x-gateway-destination-endpoint"] },
    tried = 0,
    started = ngx.now(),
  }
  for address in string.gmatch(header["x-warmpath-fallbacks"] or "", "[^,]+") do
    if #request.choices == settings.tries then break end
    table.insert(request.choices, address)
  end
  open[request] = true
  ngx.ctx.warmpath = request
  ngx.var.warmpath_pick = header["x-warmpath-reason"]
  ngx.var.warmpath_upstream = "picked_worker"
  -- Makes a port that several data-parallel ranks share reach the right one.
  ngx.req.set_header(RANK, header[RANK])
end

-- balancer: called once for each try.
function M.balance()
  local request = ngx.ctx.warmpath
  if request.tried == 0 then
    if #request.choices > 1 then balancer.set_more_tries(#request.choices - 1) end
  elseif request.tried == 1 and ngx.req.get_headers()[RANK] then
    -- Fallbacks are addresses without ranks.
    ngx.req.clear_header(RANK)
    assert(balancer.recreate_request())
  end
  request.tried = request.tried + 1
  local host, port = string.match(request.choices[request.tried], "^%[?(.-)%]?:(%d+)$")
  assert(balancer.set_current_peer(host, tonumber(port)))
end

-- body_filter: called for each piece of the answer. The first one of a stream is the first token.
function M.first_token()
  local request = ngx.ctx.warmpath
  if not request or request.seen or ngx.arg[1] == "" then return end
  request.seen = true
  if ngx.status == 200 and
     string.find(ngx.header.content_type or "", "text/event-stream", 1, true) then
    local ms = (ngx.now() - ngx.req.start_time()) * 1000
    report(request, "FIRST_TOKEN", string.format(',"ttft_ms":%.3f', ms))
  end
end

-- log: the request has ended, however it did; a client that hung up before the answer is status 499.
function M.finish()
  local request = ngx.ctx.warmpath
  if not request then return end
  open[request] = nil
  report(request, ngx.status < 400 and "FINISHED" or "FAILED")
end

return M
