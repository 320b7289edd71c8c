-- What warmpath.conf calls in the phases of a request: asks the router for a worker, tries the
-- fallbacks when it refuses the connection, and reports what became of the request.
-- Runs in NGINX's Lua module (LuaJIT) with lua-cjson.
local balancer = require "ngx.balancer"
local cjson = require "cjson.safe"

local M = {}

-- Set once, before the worker processes start.
local settings

local RENEW_SECONDS = 30    -- a reservation ends 120 s after the last sign of life
local KEPT_CONNECTIONS = 64 -- to the router, in each worker process
local KEPT_MS = 30000

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

-- Sends a report in the background: a request's end never waits for it.
local function report(ctx, kind, fields)
  fields = fields or {}
  fields.reservation_id = ctx.reservation
  fields.kind = kind
  local address = served_by()
  if address and address ~= ctx.choices[1].address then fields.served_by = address end
  local ok, err = ngx.timer.at(0, function(_, body) post("/v1/outcome", body) end,
                               cjson.encode(fields))
  if not ok then ngx.log(ngx.WARN, "warmpath: report lost: ", err) end
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
    body = '{"openai":{"path":"' .. ngx.var.uri .. '","body":' .. ngx.req.get_body_data() .. '}}',
  })
  local pick = answer.status == 200 and cjson.decode(answer.body)
  if not pick then
    -- The request's own fault, or too much load: the client is told.
    if answer.status >= 400 and answer.status < 500 then
      ngx.var.warmpath_pick = "refused:" .. answer.status
      return refuse(answer.status, answer.body, answer.header["Retry-After"])
    end
    return without_pick(answer.status)
  end
  local ctx = { reservation = pick.reservation_id, choices = { pick.endpoint }, next = 1 }
  for _, endpoint in ipairs(pick.fallbacks) do
    if #ctx.choices == settings.tries then break end
    table.insert(ctx.choices, endpoint)
  end
  ngx.ctx.warmpath = ctx
  ngx.var.warmpath_pick = pick.reason
  ngx.var.warmpath_upstream = "picked_worker"
  -- They make a shared port reach the right data-parallel rank.
  for name, value in pairs(pick.endpoint.headers) do ngx.req.set_header(name, value) end
end

-- balancer: called once for each try.
function M.balance()
  local ctx = ngx.ctx.warmpath
  local choice = ctx.choices[ctx.next]
  if ctx.next == 1 then
    if #ctx.choices > 1 then balancer.set_more_tries(#ctx.choices - 1) end
  else
    local before = ctx.choices[ctx.next - 1]
    if next(before.headers) or next(choice.headers) then
      for name in pairs(before.headers) do ngx.req.clear_header(name) end
      for name, value in pairs(choice.headers) do ngx.req.set_header(name, value) end
      assert(balancer.recreate_request())
    end
  end
  ctx.next = ctx.next + 1
  local host, port = string.match(choice.address, "^%[?(.-)%]?:(%d+)$")
  assert(balancer.set_current_peer(host, tonumber(port)))
end

-- body_filter: called for each piece of the answer. The first one of a stream is the first token.
function M.progress()
  local ctx = ngx.ctx.warmpath
  if not ctx or ngx.arg[1] == "" or ngx.arg[2] then return end
  local now = ngx.now()
  if not ctx.renewed then
    ctx.renewed = now
    local kind = ngx.header.content_type or ""
    if ngx.status == 200 and string.find(kind, "text/event-stream", 1, true) then
      report(ctx, "FIRST_TOKEN", { ttft_ms = (now - ngx.req.start_time()) * 1000 })
    end
  elseif now - ctx.renewed > RENEW_SECONDS then
    ctx.renewed = now
    report(ctx, "PROGRESS")
  end
end

-- log: the request has ended, however it did; a client that hung up is status 499.
function M.finish()
  local ctx = ngx.ctx.warmpath
  if not ctx then return end
  report(ctx, ngx.status < 400 and "FINISHED" or "FAILED")
end

return M
