old_api()
