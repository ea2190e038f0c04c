-- Health of a DraftTable in Argo CD, from the conditions that kstatus reads (docs/gitops.md). It needs no library of Lua, so it
-- works without useOpenLibs.

-- Reasons of Ready that wait for a person's word, with nothing wrong.
local on_hold = { AwaitingApproval = true, Suspended = true }

local function health(status, message)
  return { status = status, message = message }
end

local function told(condition)
  return condition.reason .. ": " .. condition.message
end

if obj.metadata.deletionTimestamp ~= nil then
  return health("Progressing", "Being deleted: its workload gets back what it had before.")
end
local status = obj.status or {}
if tostring(status.observedGeneration) ~= tostring(obj.metadata.generation) then
  return health("Progressing", "The operator has not looked at this generation yet.")
end
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local ready, reconciling, stalled = conditions.Ready, conditions.Reconciling, conditions.Stalled
if stalled ~= nil and stalled.status == "True" then
  return health("Degraded", told(stalled))
end
if ready == nil then
  return health("Progressing", "The operator has not looked at it yet.")
end
if on_hold[ready.reason] or (ready.status == "True" and obj.spec.state == "Suspended") then
  return health("Suspended", told(ready))
end
if ready.status == "True" then
  return health("Healthy", told(ready))
end
if reconciling ~= nil and reconciling.status == "True" then
  return health("Progressing", told(reconciling))
end
return health("Progressing", told(ready))
