-- Asks for a job's settings when it is submitted, so that they are known when it starts.
--
-- A hook for a whole site: put it beside slurm.conf, with CliFilterPlugins=lua there, and set the
-- two paths below. It runs in sbatch, not in slurmctld, which a network call would hold up. Users
-- opt in with a comment that names their question:
--
--   sbatch --comment=tuner:question.json train.sbatch
--
-- The question is asked in the background: a service that is slow, down, or refuses the key makes
-- no submission late and fails none. The job asks again when it starts, and is answered from what
-- was found meanwhile.

local ASK = os.getenv("TUNER_ASK") or "/opt/tuner/ask-tuner.sh"
local LOG = os.getenv("TUNER_ASK_LOG") or "/dev/null"

local function quoted(text)
    return "'" .. string.gsub(text, "'", "'\\''") .. "'"
end

function slurm_cli_setup_defaults(options, early_pass)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
    local question = string.match(options["comment"] or "", "^tuner:(.+)$")
    if question ~= nil and options["type"] == "sbatch" then
        local command = quoted(ASK) .. " submit " .. quoted(question)
        os.execute(command .. " </dev/null >>" .. quoted(LOG) .. " 2>&1 &")
    end
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
    return slurm.SUCCESS
end
