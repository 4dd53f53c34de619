-- The question to the gateway about a request, as an action of HAProxy: `http-request lua.nowserving`. It leaves its answer
-- in variables of the transaction:
--
--   txn.nowserving        "admitted": to the shop; "waits": to the gateway; "away": no gateway answers; not set: refused
--   txn.nowserving_pass   the pass for the shop, if there is one
--   txn.nowserving_wait   path and query of the waiting page

local gate = "http://127.0.0.1:8079/gate/nginx"
local patience_ms = 10000

-- Of one connection, or of a body, which the question has not.
local left_out = {}
for _, name in ipairs({
    "connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade",
}) do
    left_out[name] = true
end

local function header(answer, name)
    local values = answer.headers and answer.headers[name]
    return values and values[0]
end

core.register_action("nowserving", { "http-req" }, function(txn)
    local headers = {}
    for name, values in pairs(txn.http:req_get_headers()) do
        if not left_out[name] then
            headers[name] = values
        end
    end
    headers["x-original-method"] = { txn.f:method() }
    headers["x-original-uri"] = { txn.f:pathq() }

    local answer = core.httpclient():get({ url = gate, headers = headers, timeout = patience_ms })
    if answer.status == 204 then
        local pass = header(answer, "nowserving-pass")
        if pass then
            txn:set_var("txn.nowserving_pass", pass, true)
        end
        txn:set_var("txn.nowserving", "admitted", true)
    elseif answer.status == 401 and header(answer, "nowserving-wait") then
        txn:set_var("txn.nowserving_wait", header(answer, "nowserving-wait"), true)
        txn:set_var("txn.nowserving", "waits", true)
    elseif answer.status == 502 or answer.status == 503 or answer.status == 504 then
        -- HAProxy's own words. The gateway never answers so, whatever the client sends.
        txn:set_var("txn.nowserving", "away", true)
    end
end)
