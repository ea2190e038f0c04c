"""The platform that the stand-in plays: a CUDA device, because that is what was recorded."""


class Platform:
    device_type = "cuda"
    device_name = "cuda"

    def is_cpu(self) -> bool:
        return False

    def is_cuda(self) -> bool:
        return True

    def is_cuda_alike(self) -> bool:
        return True


current_platform = Platform()
